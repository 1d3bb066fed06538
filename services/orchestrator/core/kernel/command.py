"""Commands and answers: the contract between a machine, which is pure, and the app, which does the work.

A machine has one outstanding command. The app carries it out with the effect of the command's type and gives the answer
to the machine. A new command is one module: the command, its answer, and `after`, which returns the outcome.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, ClassVar, Self

from pagantic_common.domain.usage import TokenUsage

NO_USAGE = TokenUsage()


class Answer:
    """The answer to a command, a frozen dataclass that is stored as a journal entry.

    Attributes:
        kind: The name in the journal. A class may be renamed, but its kind must stay, and it must be unique.
    """

    __slots__ = ()
    kind: ClassVar[str]

    @property
    def total_usage(self) -> TokenUsage:
        """The tokens that the answer adds to its machine's usage: its field `usage`, if present."""
        usage: TokenUsage = getattr(self, "usage", NO_USAGE)
        return usage

    def as_recorded(self) -> Self:
        """Return the answer without usage, for reuse in a replay."""
        if not hasattr(self, "usage"):
            return self
        return replace(self, usage=NO_USAGE)  # type: ignore[type-var]  # an answer is a dataclass


class Command:
    """A command of a machine, a frozen dataclass. A command without an answer is the last command of its machine.

    Attributes:
        step: The name of the command among an execution's steps, or an empty string if it is not a step.
        is_counted: Whether the command may occur several times, so that its steps are numbered.
    """

    __slots__ = ()
    step: ClassVar[str] = ""
    is_counted: ClassVar[bool] = False


class AnsweredCommand(Command, ABC):
    """A command that the app answers.

    Attributes:
        answer: The type of the answer.
    """

    __slots__ = ()
    answer: ClassVar[type[Answer]]

    @abstractmethod
    def after(self, state: Any, answer: Any, /) -> Any:
        """Return the outcome of a machine in this state when it receives the answer. Pure, like the machine."""


class IllegalAnswerError(RuntimeError):
    """Raised if a machine receives anything but the answer to its outstanding command.

    The cause is a programming error, or a journal with a missing entry.
    """
