"""Grammars as text: GBNF, JSON Schema, and the text of the decoding engine. Knows nothing of services."""
