"""The ports that the use cases depend on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from services.constraint.core.judgement import Verdict

ResultT = TypeVar("ResultT")


class Workers(Protocol):
    """Workers that process callers' sources and outputs."""

    async def run(self, work: Callable[..., ResultT], *arguments: object) -> ResultT:
        """Return the result of `work`, and raise its errors. Arguments, results and errors must be picklable.

        Raises InvalidRequest (CONSTRAINT_TOO_COMPLEX) if the work takes too much time or memory, and Overloaded if the
        queue of the workers is full.
        """


class NamedGrammars(Protocol):
    """The configured grammars."""

    def read(self, name: str) -> str:
        """Return the GBNF text of the grammar. Raises InvalidRequest (CONFIG_GRAMMAR_NOT_FOUND)."""


class Judge(Protocol):
    """A model that decides whether an output meets an intent."""

    async def judge(self, output: str, intent: str, model: str) -> Verdict:
        """Ask the model. An empty name selects the default model. Raises an error if the model returns no verdict."""
