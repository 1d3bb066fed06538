"""What a function can ask of the call that it serves."""

from __future__ import annotations

import threading


class ToolCancelled(Exception):
    """The call that a function serves was given up: nobody waits for its result."""


class ToolContext:
    """The call that a function serves; a parameter of this type is passed by the service and not by the model.

    A function that is not async cannot be interrupted. One that runs for long calls `check` between its steps. May be
    used from any thread.
    """

    def __init__(self) -> None:
        self._is_cancelled = threading.Event()

    @property
    def is_cancelled(self) -> bool:
        """Whether the caller left or the time is up."""
        return self._is_cancelled.is_set()

    def check(self) -> None:
        """Raise ToolCancelled once the caller left or the time is up."""
        if self.is_cancelled:
            raise ToolCancelled

    def cancel(self) -> None:
        """Note that nobody waits for the result."""
        self._is_cancelled.set()
