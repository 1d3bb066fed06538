"""A process that works for ProcessWorkers: `python -m services.constraint.adapters.worker FD MEMORY_MIB TIME_S`.

It lives on one end of a socket: takes a function and its arguments, gives what came of them, ends with the socket. Work
that outlives its time although nobody kills the process ends it by a signal.
"""

from __future__ import annotations

import os
import pickle
import resource
import signal
import sys
import threading
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

import services.constraint.core.work  # noqa: F401 - loaded before the memory is bounded
from pagantic_common.grammar.engine_text import STACK_BYTES

MAX_REPLY_BYTES = 16 * 1024 * 1024
REPLY_TOO_LARGE = b"too large"
_MIB = 1024 * 1024
_GRACE_S = 1.0


def limit_memory(mib: int) -> None:
    """Let this process take so much more than it has now."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:  # not Linux: time is bounded, memory is not
        return
    limit = pages * resource.getpagesize() + mib * _MIB
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def serve(connection: Connection, time_s: float) -> None:
    """Work until the other end closes."""
    connection.send(None)  # ready
    while True:
        try:
            work, arguments = connection.recv()
        except (EOFError, OSError):
            return
        signal.setitimer(signal.ITIMER_REAL, time_s + _GRACE_S)
        try:
            reply: tuple[bool, object] = (True, work(*arguments))
        except MemoryError:
            os._exit(1)  # what is left of the memory is not worth keeping
        except Exception as error:  # noqa: BLE001 - the caller raises it
            error.add_note(f"in a worker process:\n{traceback.format_exc()}")
            reply = (False, error)
        signal.setitimer(signal.ITIMER_REAL, 0)
        connection.send_bytes(_packed(reply))


def _packed(reply: tuple[bool, object]) -> bytes:
    try:
        packed = pickle.dumps(reply)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        return pickle.dumps((False, RuntimeError(f"the result cannot be sent: {error}")))
    return packed if len(packed) <= MAX_REPLY_BYTES else REPLY_TOO_LARGE


def main() -> None:
    """Serve the socket that was inherited."""
    file_descriptor, memory_mib, time_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    for number in (signal.SIGINT, signal.SIGTERM):  # are for the service, which ends its work and closes the socket
        signal.signal(number, signal.SIG_IGN)
    connection = Connection(file_descriptor)
    threading.stack_size(STACK_BYTES)  # which the main thread cannot have
    thread = threading.Thread(target=serve, args=(connection, time_s), daemon=True)
    limit_memory(memory_mib + STACK_BYTES // _MIB)
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
