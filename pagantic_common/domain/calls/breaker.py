"""A circuit breaker, which decides whether to call a service after failures. Time is an argument and never decreases.

1. Closed: every call is admitted. `THRESHOLD` consecutive failures without an answer in between open the breaker.
2. Open: no call is admitted until the interval ends. Failures of earlier calls have no effect.
3. After the interval, a single call is admitted as a probe. If the probe fails, the breaker opens for twice as long, up
   to a maximum.
4. A probe that has not failed within `PROBE_S` closes the breaker, but the next failure opens it again. A service that
   is down fails a call immediately; a recovered service may take a long time to answer.
5. An answer to any call closes the breaker.
"""

from __future__ import annotations

from typing import Final

from pagantic_common.domain.backoff import Backoff

THRESHOLD: Final = 5
FIRST_OPEN_S: Final = 0.25
MAX_OPEN_S: Final = 1.0
PROBE_S: Final = 0.5


class Breaker:
    """The breaker of a service or a tool. It first opens for `first_open_s`, and at most for `max_open_s`."""

    def __init__(
        self, first_open_s: float = FIRST_OPEN_S, max_open_s: float = MAX_OPEN_S, probe_s: float = PROBE_S
    ) -> None:
        self._backoff = Backoff(first_open_s, max_open_s)
        self._probe_s = probe_s
        self._failures = 0  # consecutive failures
        self._openings = 0  # consecutive openings; 0 means that the breaker is closed
        self._until_s = 0.0  # end of the interval or, during a probe, of the time for the probe
        self._is_probing = False

    @property
    def is_open(self) -> bool:
        """Whether calls other than probes are refused."""
        return self._openings > 0

    def admit(self, now_s: float) -> float:
        """Admit a call and return 0.0, or return the remaining time, in seconds, for which calls are refused."""
        if self._is_probing and now_s >= self._until_s:
            self._close(THRESHOLD - 1)
        if not self._openings:
            return 0.0
        if now_s < self._until_s:
            return self._until_s - now_s
        self._is_probing = True
        self._until_s = now_s + self._probe_s
        return 0.0

    def note_answer(self) -> None:
        """Record that a call was answered, with a response or with an error of the service itself."""
        self._close(0)

    def note_failure(self, now_s: float) -> None:
        """Record that a call was not answered. Calls that their caller cancelled must not be recorded."""
        if self._is_probing:
            self._open(now_s)
        elif not self._openings:
            self._failures += 1
            if self._failures >= THRESHOLD:
                self._open(now_s)

    def _open(self, now_s: float) -> None:
        self._openings += 1
        self._until_s = now_s + self._backoff.wait_s(self._openings)
        self._is_probing = False

    def _close(self, failures: int) -> None:
        self._failures = failures
        self._openings = 0
        self._is_probing = False
