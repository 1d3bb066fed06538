"""`python child.py PARENT PROGRAM ARGUMENT...`: becomes a program that ends when the process PARENT does (on Linux).

It runs by its path and without site packages, so it starts quickly and imports nothing of the service.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_EXIT_NOT_RUN = 127


def main() -> None:
    """Ask the kernel for SIGKILL when the parent ends, and then become the program. The request survives the exec."""
    parent, *argv = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        sys.exit("the service that asked is gone")
    try:
        os.execvp(argv[0], argv)  # noqa: S606 - no shell is wanted
    except OSError as error:
        print(f"{argv[0]} cannot be run: {error.strerror}", file=sys.stderr)  # noqa: T201 - the service logs it
        sys.exit(_EXIT_NOT_RUN)


if __name__ == "__main__":
    main()
