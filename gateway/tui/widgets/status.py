"""The line below the conversation: the current activity and the usage of the context window."""

from __future__ import annotations

from typing import Final

from textual.app import ComposeResult
from textual.containers import Horizontal

from gateway.tui.widgets.plain import Plain

BAR_COLUMNS: Final = 10
NEARLY_FULL, FULL = 0.75, 0.95


class StatusLine(Horizontal):
    """Shows the state of the answer, and the context meter."""

    def __init__(self) -> None:
        super().__init__(id="status")
        self._state = Plain(id="state")
        self._meter = Plain(id="meter")

    def compose(self) -> ComposeResult:
        """Show the state and the meter."""
        yield self._state
        yield self._meter

    def show_state(self, text: str, *, is_warning: bool = False) -> None:
        """Show the current activity."""
        self._state.set_class(is_warning, "warning")
        self._state.show(text)

    def show_usage(self, tokens: int, window: int) -> None:
        """Show how many tokens of the context window the latest inference used."""
        self._meter.show(meter_text(tokens, window))
        share = share_of(tokens, window)
        self._meter.set_class(NEARLY_FULL <= share < FULL, "nearly-full")
        self._meter.set_class(share >= FULL, "full")


def share_of(tokens: int, window: int) -> float:
    """Return the used share of the window, from 0 to 1, or 0 if the size of the window is unknown."""
    if window <= 0:
        return 0.0
    return min(1.0, tokens / window)


def meter_text(tokens: int, window: int) -> str:
    """Return the meter as text, or an empty string if the size of the window is unknown."""
    if window <= 0:
        return ""
    share = share_of(tokens, window)
    filled = round(share * BAR_COLUMNS)
    if tokens and not filled:
        filled = 1
    return f"context {'█' * filled}{'░' * (BAR_COLUMNS - filled)} {tokens:,} of {window:,} tokens, {share:.0%}"
