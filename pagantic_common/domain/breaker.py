"""A circuit breaker: whether a service that did not answer is called again. Time is an argument and only grows.

1. Closed: calls are made. `THRESHOLD` failures in a row, no answer between them, open it.
2. Open: no call is made until the interval is over; failures of calls that began before change nothing.
3. Then one call is made, the probe. Its failure opens again for twice as long, `MAX_OPEN_S` at most.
4. A probe that has not failed for `PROBE_S` is believed, since a service that is gone fails a call at once and one that
   is back may think for long: it is closed, but the next failure opens.
5. An answer to any call closes.
"""

from __future__ import annotations

from typing import Final

THRESHOLD: Final = 5
FIRST_OPEN_S: Final = 0.25
MAX_OPEN_S: Final = 1.0
PROBE_S: Final = 0.5


class Breaker:
    """What is known of one service."""

    def __init__(self) -> None:
        self._failures = 0  # in a row
        self._open_s = 0.0  # length of the interval; 0 is closed
        self._until_s = 0.0  # when the interval, or the patience with the probe, is over
        self._is_probing = False

    @property
    def is_open(self) -> bool:
        """Whether calls are refused, but for probes."""
        return self._open_s > 0

    def admit(self, now_s: float) -> float:
        """Return 0.0 when a call may be made, and then it is made, else how long none may be, seconds."""
        if self._is_probing and now_s >= self._until_s:
            self._close(THRESHOLD - 1)
        if not self.is_open:
            return 0.0
        if now_s < self._until_s:
            return self._until_s - now_s
        self._is_probing = True
        self._until_s = now_s + PROBE_S
        return 0.0

    def note_answer(self) -> None:
        """A call was answered, be it by an error of the service's own."""
        self._close(0)

    def note_failure(self, now_s: float) -> None:
        """A call was not answered; one that its caller ended is neither failure nor answer."""
        if self._is_probing:
            self._open(now_s, min(2 * self._open_s, MAX_OPEN_S))
        elif not self.is_open:
            self._failures += 1
            if self._failures >= THRESHOLD:
                self._open(now_s, FIRST_OPEN_S)

    def _open(self, now_s: float, interval_s: float) -> None:
        self._open_s, self._until_s, self._is_probing = interval_s, now_s + interval_s, False

    def _close(self, failures: int) -> None:
        self._failures, self._open_s, self._is_probing = failures, 0.0, False
