"""What the use-cases need of the world."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from services.constraint.core.judgement import Verdict

ResultT = TypeVar("ResultT")


class Workers(Protocol):
    """Where work on callers' sources and outputs is done."""

    async def run(self, work: Callable[..., ResultT], *arguments: object) -> ResultT:
        """Return what `work` returns and raise what it raises; all of it are values that can be pickled.

        Raises InvalidRequest (CONSTRAINT_TOO_COMPLEX) when the work takes too much time or memory, Overloaded when too
        much other work waits.
        """


class NamedGrammars(Protocol):
    """The configured grammars."""

    def read(self, name: str) -> str:
        """Return the grammar's GBNF; raises InvalidRequest (CONFIG_GRAMMAR_NOT_FOUND)."""


class Judge(Protocol):
    """A model that tells whether an output meets an intent."""

    async def judge(self, output: str, intent: str, model: str) -> Verdict:
        """Ask; an empty model is the default one. Trouble in asking raises, and is never a verdict."""
