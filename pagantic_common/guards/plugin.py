"""The interface of guards: plug-ins in the entry point group `pagantic.guards`. It is independent of its callers.

An entry point names a function that maps the options in the guards file to a guard. For unusable options, the function
raises ValueError with a message for the operator. Guards run in worker processes without network access.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol

ENTRY_POINT_GROUP: Final = "pagantic.guards"
MAX_WINDOW: Final = 4096  # characters


class GuardStage(StrEnum):
    """The stages at which a guard reads text."""

    INPUT = "input"
    TOOL_ARGUMENTS = "tool_arguments"
    TOOL_RESULTS = "tool_results"
    OUTPUT = "output"


@dataclass(frozen=True, slots=True)
class Finding:
    """A part of a text: the characters from `start` up to, but not including, `end`. `kind` does not reveal text."""

    start: int
    end: int
    kind: str


@dataclass(frozen=True, slots=True)
class GuardTraits:
    """The requirements and abilities of a guard.

    Attributes:
        window: The maximum number of characters in a finding that contains a space, or 0 if the guard judges a text as
            a whole. This many characters of a streaming text are held back.
        can_redact: Whether the findings may be cut out of a text, so that the rest may pass.
        reads_untrusted_only: Whether the guard reads only the texts of users and tools, not the texts of the
            application and models.
        statements: Statements about a text that a model judges in place of `find`.
        threshold: The probability, from 0 to 1, at which a statement counts as true.
    """

    window: int = 0
    can_redact: bool = True
    reads_untrusted_only: bool = False
    statements: tuple[str, ...] = ()
    threshold: float = 0.5


class Guard(Protocol):
    """Finds text that must not pass. An instance serves many texts, one after another."""

    @property
    def traits(self) -> GuardTraits:
        """The requirements and abilities of the guard."""

    def find(self, text: str, start: int) -> Sequence[Finding]:
        """Return the findings in a text, or in a part of a text that starts at character `start`."""


MakeGuard = Callable[[Mapping[str, Any]], Guard]
