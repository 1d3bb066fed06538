"""Handles grammars as text: GBNF, JSON Schema, and the decoding engine's language. Independent of all services."""
