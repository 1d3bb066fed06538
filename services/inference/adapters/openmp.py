"""Controls the threads of llama.cpp's OpenMP library, libgomp: their spinning before they sleep, and their end.

libgomp reads two spin counts when it loads. It normally uses the long count, and the short count while it manages more
threads than there are processors. A sleeping team of extra threads therefore switches all other threads to the short
count.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import threading
from functools import cache
from pathlib import Path

from services.inference.adapters.machine import usable_processors
from services.inference.core.tuning import LONG_SPIN_COUNT

_SOFT = 1  # omp_pause_soft
_SEMAPHORE_BYTES = 64
_MAPS = Path("/proc/self/maps")


def set_spinning(spin_count: int | str) -> None:
    """Set the number of rounds that idle threads spin; "auto" selects the long count.

    The count applies to this process and its children. libgomp reads it once, when llama.cpp's library loads.
    """
    if isinstance(spin_count, str):
        spin_count = LONG_SPIN_COUNT
    os.environ["GOMP_SPINCOUNT"] = str(spin_count)
    os.environ.setdefault("OMP_WAIT_POLICY", "active")  # raises the short count from 100 to 1000


def release_threads() -> None:
    """End the thread pool that libgomp keeps for the calling thread, because its threads count as managed."""
    release = getattr(_libgomp(), "omp_pause_resource_all", None)  # since GCC 9
    if release is not None:
        release(_SOFT)


class SpinSwitch:
    """Switches all threads of this process between the long and the short spin count.

    Raises OSError if llama.cpp was not loaded with libgomp.
    """

    def __init__(self) -> None:
        library = _libgomp()
        if library is None:
            raise OSError("llama.cpp runs without libgomp here")
        self._libgomp = library
        self._libc = ctypes.CDLL(None)
        self._threads = len(usable_processors()) + 1
        self._semaphore = ctypes.create_string_buffer(_SEMAPHORE_BYTES)
        self._team: threading.Thread | None = None

    def set_long(self, is_long: bool) -> None:
        """Switch all threads to the long or the short spin count."""
        if is_long:
            self._wake_team()
        elif self._team is None:
            self._libc.sem_init(self._semaphore, 0, 0)
            team = threading.Thread(target=self._sleep, name="spin-briefly", daemon=True)
            team.start()
            self._team = team

    def _sleep(self) -> None:
        """Put a team of threads to sleep until the semaphore wakes them. The team ends with this thread."""
        self._libgomp.GOMP_parallel(self._libc.sem_wait, self._semaphore, self._threads, 0)

    def _wake_team(self) -> None:
        if self._team is None:
            return
        for _ in range(self._threads):
            self._libc.sem_post(self._semaphore)
        self._team.join()
        self._team = None


@cache
def _libgomp() -> ctypes.CDLL | None:
    """Return the libgomp that llama.cpp has loaded, under any file name, or None if llama.cpp uses no libgomp."""
    # Importing the binding loads the library.
    importlib.import_module("llama_cpp")
    try:
        lines = _MAPS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    paths = (line.split(maxsplit=5)[-1] for line in lines if "libgomp" in line)
    return next(map(ctypes.CDLL, paths), None)
