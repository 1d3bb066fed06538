"""Computes the waits between failed attempts."""

from __future__ import annotations

import math
from dataclasses import dataclass

_MAX_EXPONENT = 60  # A larger exponent may overflow a float. By then, every wait has reached its maximum.


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits that grow from `first_s` by `factor` up to `max_s`. All times are in seconds.

    If the peer states a longer wait, that wait applies, up to `max_stated_s`.
    """

    first_s: float
    max_s: float = math.inf
    factor: float = 2.0
    max_stated_s: float = math.inf

    def wait_s(self, failures: int, *, stated_s: float | None = None, chance: float = 0.0) -> float:
        """Return the wait after `failures` consecutive failures, which must be at least 1.

        `chance`, from 0 to 1, reduces the wait by up to half, so that peers that failed together do not retry in step.
        """
        grown_s = self.first_s * self.factor ** min(failures - 1, _MAX_EXPONENT)
        return max(min(grown_s, self.max_s) * (1 - chance / 2), min(stated_s or 0.0, self.max_stated_s))
