"""The lexemes of a JSON text, for changing parts of a text without rewriting the rest."""

from __future__ import annotations

import re

# Strings, punctuation, and runs of other characters but white space. The text must be valid JSON.
LEXEME = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{},:]|[^\s\[\]{},:"]+', re.DOTALL)
