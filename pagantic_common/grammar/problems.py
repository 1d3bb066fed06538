"""Problems of grammars, and the errors that carry them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem and its position. Line and column count characters from 1, and are 0 without a position."""

    message: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        if not self.line:
            return self.message
        return f"line {self.line} column {self.column}: {self.message}"


class GrammarError(ValueError):
    """The grammar, regular expression or schema cannot be compiled. `problems` lists every reason."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__("; ".join(str(problem) for problem in problems))
        self.problems = problems


class GrammarTooComplexError(GrammarError):
    """The grammar, regular expression or schema exceeds a limit of the engine."""


def place_of(text: str, offset: int) -> tuple[int, int]:
    """Return the line and column of an offset, both counted from 1."""
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)
