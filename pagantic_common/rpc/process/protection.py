"""Keeps the memory and the environment of a service, which hold keys and texts, from other processes of its user."""

from __future__ import annotations

import ctypes
import sys

_PR_SET_DUMPABLE = 4


def protect_memory() -> None:
    """Keep other processes of the user from this process's memory and environment, on Linux.

    A child that runs another program, such as a worker or a server, is protected only if it calls this function itself.
    The process does not leave a core dump, and only root can attach a debugger.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
