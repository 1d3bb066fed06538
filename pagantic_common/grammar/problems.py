"""What can be wrong with a grammar."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong, and where: line and column from 1, in characters; 0 when it has no place."""

    message: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"line {self.line} column {self.column}: {self.message}" if self.line else self.message


class GrammarError(ValueError):
    """The grammar, regular expression or schema cannot be compiled; `problems` says all that is wrong."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__("; ".join(str(problem) for problem in problems))
        self.problems = problems


class GrammarTooComplexError(GrammarError):
    """The engine could compile it, but for its limits."""


def place_of(text: str, offset: int) -> tuple[int, int]:
    """Return line and column, from 1, of an offset."""
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)
