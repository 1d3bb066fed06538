"""Grammars as text: GBNF, JSON Schema, and the text of the decoding engine. Independent of all services."""
