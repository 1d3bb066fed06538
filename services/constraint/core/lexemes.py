"""The lexemes of a JSON text, for what changes a text without writing all of it anew."""

from __future__ import annotations

import re

# Strings, punctuation, and runs of anything else but white space, of a text that is known to be JSON.
LEXEME = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{},:]|[^\s\[\]{},:"]+', re.DOTALL)
