"""The ports of the use-cases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from services.constraint.core.judgement import Verdict

ResultT = TypeVar("ResultT")


class Workers(Protocol):
    """Do the work on callers' sources and outputs."""

    async def run(self, work: Callable[..., ResultT], *arguments: object) -> ResultT:
        """Return the result of `work` and raise its errors; arguments, results and errors can be pickled.

        Raises InvalidRequest (CONSTRAINT_TOO_COMPLEX) for work that takes too much time or memory, and Overloaded when
        too much other work waits.
        """


class NamedGrammars(Protocol):
    """The configured grammars."""

    def read(self, name: str) -> str:
        """Return the grammar's GBNF; raises InvalidRequest (CONFIG_GRAMMAR_NOT_FOUND)."""


class Judge(Protocol):
    """A model that decides whether an output meets an intent."""

    async def judge(self, output: str, intent: str, model: str) -> Verdict:
        """Ask the model; an empty name is the default model. Raises when there is no verdict."""
