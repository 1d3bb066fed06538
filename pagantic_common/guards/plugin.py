"""What a guard is: a plug-in under the entry point group `pagantic.guards`. Knows nothing of who asks it, and when.

An entry point names a function that takes the options of the guards file, a mapping, and returns a guard; it raises
ValueError, in words for the operator, for options that it cannot use. Guards run in worker processes, without network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol

ENTRY_POINT_GROUP: Final = "pagantic.guards"
MAX_WINDOW: Final = 4096  # characters


class GuardStage(StrEnum):
    """Where a guard reads."""

    INPUT = "input"
    TOOL_ARGUMENTS = "tool_arguments"
    TOOL_RESULTS = "tool_results"
    OUTPUT = "output"


@dataclass(frozen=True, slots=True)
class Finding:
    """A part of a text, its characters from `start` to before `end`, and its kind, which tells nothing of the text."""

    start: int
    end: int
    kind: str


@dataclass(frozen=True, slots=True)
class GuardTraits:
    """What a guard needs and can do.

    Attributes:
        window: The most characters of a finding, but for one without a space among them; 0 for a guard that judges a
            text as a whole. A text that streams is held back by so much.
        can_redact: Whether its findings may be cut out of a text, so that the rest may pass.
        reads_untrusted_only: Whether it reads only what users and tools say, not what the application and models do.
        statements: Statements of a text that a model judges in place of `find`.
        threshold: The probability, from 0 to 1, from which a statement counts as true.
    """

    window: int = 0
    can_redact: bool = True
    reads_untrusted_only: bool = False
    statements: tuple[str, ...] = ()
    threshold: float = 0.5


class Guard(Protocol):
    """Finds what must not pass. An instance serves many texts, one after the other."""

    @property
    def traits(self) -> GuardTraits:
        """What it needs and can do."""

    def find(self, text: str, start: int) -> Sequence[Finding]:
        """Return the findings in a text, or in a part of one that begins `start` characters after its beginning."""


MakeGuard = Callable[[Mapping[str, Any]], Guard]
