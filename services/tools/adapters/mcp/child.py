"""`python child.py PARENT PROGRAM ARGUMENT...`: executes a program that ends with the process PARENT (on Linux).

It is started by path and without site packages, so it starts quickly and imports nothing from the service.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_EXIT_NOT_RUN = 127


def main() -> None:
    """Have the kernel send SIGKILL when the parent ends, then exec the program. The setting survives exec."""
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
