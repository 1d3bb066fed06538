"""Grammars as text: GBNF, and what the decoding engine takes. Knows nothing of services."""
