"""The interface between a function and the call that it serves."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from pagantic_common.domain.messages import ToolProgress

MAX_MESSAGE_CHARS = 200
REPORT_INTERVAL_S = 0.1


class ToolCancelled(Exception):
    """The call that a function serves was cancelled, so the result is no longer needed."""


class ToolNotRun(Exception):
    """The outcome of a lost call that neither had nor will have an effect."""


class ToolContext:
    """The call that a function serves. The service, not the model, passes a parameter of this type.

    A function that is not async cannot be interrupted, so a long function should call `check` between its steps. May be
    used from any thread.

    Attributes:
        effect_id: Identifies the effect of the call, and stays the same if the call is repeated; 64 hexadecimal digits,
            or empty if the caller did not give an id. A function that passes it on as an idempotency key does its work
            once.
    """

    def __init__(self, on_progress: Callable[[ToolProgress], None] = lambda _: None, *, effect_id: str = "") -> None:
        self.effect_id = effect_id
        self._is_cancelled = threading.Event()
        self._on_progress = on_progress
        self._reported_at_s = -math.inf

    @property
    def is_cancelled(self) -> bool:
        """Whether the caller has left or the time is up."""
        return self._is_cancelled.is_set()

    def check(self) -> None:
        """Raise ToolCancelled if the caller has left or the time is up."""
        if self.is_cancelled:
            raise ToolCancelled

    def report(self, progress: float, total: float | None = None, message: str = "") -> None:
        """Report progress to the watchers of the call. A report within 0.1 s of the previous report is dropped.

        Args:
            progress: Completed work, in a unit that the function chooses. It must grow.
            total: Total work in the same unit, if known.
            message: The current activity of the function, truncated to 200 characters.

        Raises ValueError if a number is not finite.
        """
        if not (math.isfinite(progress) and math.isfinite(total or 0.0)):
            raise ValueError(f"progress {progress} of {total}: both must be finite")
        now_s = time.monotonic()
        if now_s - self._reported_at_s < REPORT_INTERVAL_S or self.is_cancelled:
            return
        self._reported_at_s = now_s
        self._on_progress(ToolProgress(progress, total, message[:MAX_MESSAGE_CHARS]))

    def cancel(self) -> None:
        """Record that the result is no longer needed."""
        self._is_cancelled.set()
