"""Problems of grammars, and the errors that carry them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem and its place: line and column count characters from 1; 0 when it has no place."""

    message: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        if not self.line:
            return self.message
        return f"line {self.line} column {self.column}: {self.message}"


class GrammarError(ValueError):
    """The grammar, regular expression or schema cannot be compiled; `problems` names every reason."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__("; ".join(str(problem) for problem in problems))
        self.problems = problems


class GrammarTooComplexError(GrammarError):
    """The grammar, regular expression or schema exceeds a limit of the engine."""


def place_of(text: str, offset: int) -> tuple[int, int]:
    """Return line and column, from 1, of an offset."""
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)
