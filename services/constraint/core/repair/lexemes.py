"""The lexemes of a JSON text, used to change a part of the text and leave the rest as it is."""

from __future__ import annotations

import re

# Matches strings, punctuation, and runs of other characters except white space. The text must be valid JSON.
LEXEME = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{},:]|[^\s\[\]{},:"]+', re.DOTALL)
