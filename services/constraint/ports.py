"""What the use-cases need of the world."""

from __future__ import annotations

from typing import Protocol


class GrammarMatcher(Protocol):
    """Tells whether a compiled grammar derives a text."""

    def matches(self, engine_text: str, text: str) -> bool:
        """Whether the whole text is derived; raises InvalidRequest (CONSTRAINT_TOO_COMPLEX) when it takes too long."""


class NamedGrammars(Protocol):
    """The configured grammars."""

    def read(self, name: str) -> str:
        """Return the grammar's GBNF; raises InvalidRequest (CONFIG_GRAMMAR_NOT_FOUND)."""
