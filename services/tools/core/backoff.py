"""The wait before the next attempt to reach a peer that failed."""

from __future__ import annotations

_MAX_DOUBLINGS = 30


def wait_s(failures: int, *, first_s: float, max_s: float, chance: float) -> float:
    """Return the wait after `failures` failures in a row, in seconds.

    It doubles from `first_s` to `max_s`; `chance`, between 0 and 1, removes up to half of it, so that the clients of a
    service do not reconnect at the same moment.
    """
    doubled_s = first_s * 2.0 ** min(failures - 1, _MAX_DOUBLINGS)
    return min(doubled_s, max_s) * (1 - chance / 2)
