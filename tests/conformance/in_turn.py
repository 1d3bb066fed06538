"""`python in_turn.py LOCK PROGRAM ARGUMENT...`: becomes a program when no other of its kind runs.

The suite starts all its clients at once, which on a small machine makes each too slow for the protocol's own limits.
"""

import fcntl
import os
import sys


def main():
    lock, *argv = sys.argv[1:]
    held = os.open(lock, os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(held, fcntl.LOCK_EX)
    os.set_inheritable(held, True)  # the program holds it until it ends
    os.execvp(argv[0], argv)  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main()
