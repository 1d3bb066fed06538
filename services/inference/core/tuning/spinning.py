"""Decides how long the engine's idle threads spin, by what other processes use of the processor.

Threads that spin long meet sooner at the barriers of a step. Beside a process that wants their cores, the one that
spins takes the core from the one that it waits for.
"""

from __future__ import annotations

from services.inference.core.tuning.choosing import BUSY_CORES

LONG_SPIN_COUNT = 100_000
QUIET_READINGS = 2


class SpinRule:
    """Follows the load of other processes: at once when it rises, after some readings when it falls."""

    def __init__(self) -> None:
        self._quiet_readings = 0

    def is_long(self, busy_cores: float) -> bool:
        """Take one more reading and return whether threads spin long from now on.

        `busy_cores` are the cores that other processes used, beyond those that the engine leaves free.
        """
        self._quiet_readings += 1
        if busy_cores > BUSY_CORES:
            self._quiet_readings = 0
        return self._quiet_readings >= QUIET_READINGS
