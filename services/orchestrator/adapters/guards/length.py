"""Finds the text beyond a maximum number of characters. Options: `max_chars`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagantic_common.guards.plugin import Finding, GuardTraits
from services.orchestrator.adapters.guards.options import check_names


class LengthGuard:
    """Finds the excess of a text that is too long."""

    traits = GuardTraits(window=1, can_redact=False)

    def __init__(self, max_chars: int) -> None:
        self._max_chars = max_chars

    def find(self, text: str, start: int) -> list[Finding]:
        """Return a finding for the excess characters."""
        remaining_chars = max(0, self._max_chars - start)
        if len(text) <= remaining_chars:
            return []
        return [Finding(remaining_chars, len(text), "TOO_LONG")]


def make_guard(options: Mapping[str, Any]) -> LengthGuard:
    """Make the guard. Raises ValueError if `max_chars` is not a whole number of at least 1."""
    check_names(options, "max_chars")
    max_chars = options.get("max_chars")
    if isinstance(max_chars, bool) or not isinstance(max_chars, int) or max_chars < 1:
        raise ValueError("option 'max_chars' is not a whole number of at least 1")
    return LengthGuard(max_chars)
