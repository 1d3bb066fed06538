"""Tracks a text of an inference on its way through the guards."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from pagantic_common.guards.plugin import GuardStage
from pagantic_common.guards.redaction import TextStream, Window
from services.orchestrator.core.guards.rules import GuardRule, Tally
from services.orchestrator.core.model.response import InferenceDelta

MAX_DELTA: Final = 256 * 1024  # characters; fits into one message even at four bytes each
_ESCAPE = re.compile(r"\\[nrtbf\"/\\]")


class Link:
    """A guard through which a text passes. If the guard fails open, `is_open` is set and all text passes."""

    def __init__(self, rule: GuardRule, *, is_json: bool = False) -> None:
        self.rule = rule
        self.stream = TextStream(rule.traits.window)
        self.tally = Tally(rule, GuardStage.OUTPUT)
        self.is_open = False
        self._is_json = is_json

    def seen(self, window: Window) -> Window:
        """Return the guard's view of a window, in which blanks replace JSON escapes, so that escapes separate words."""
        if not self._is_json:
            return window
        return replace(window, text=_ESCAPE.sub("  ", window.text))


@dataclass(slots=True)
class Said:
    """A text of an inference: the pieces from the model, and the pieces that have passed the guards."""

    links: list[Link]
    raw: list[str] = field(default_factory=list)
    passed: list[str] = field(default_factory=list)


def parts_of(delta: InferenceDelta) -> Iterator[InferenceDelta]:
    """Split a delta into parts small enough to send. Released text and redaction marks can make a delta long."""
    if len(delta.content) + len(delta.reasoning) <= MAX_DELTA:
        yield delta
        return
    for start in range(0, len(delta.reasoning), MAX_DELTA):
        yield replace(delta, content="", reasoning=delta.reasoning[start : start + MAX_DELTA])
    for start in range(0, len(delta.content), MAX_DELTA):
        yield replace(delta, content=delta.content[start : start + MAX_DELTA], reasoning="")
