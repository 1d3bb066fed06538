"""A process that works for ProcessWorkers: `python -m pagantic_common.workers.worker FD MEMORY_MIB TIME_S MODULE`.

It reads pickled functions with their arguments from a socket, writes the results as JSON, and exits when the socket is
closed. A timer signal ends the process if its work takes too long and its owner does not kill it.
"""

from __future__ import annotations

import importlib
import os
import resource
import signal
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path

from pagantic_common.grammar.engine_text import STACK_BYTES
from pagantic_common.workers.confinement import confine
from pagantic_common.workers.replies import pack_error, pack_result

_MIB = 1024 * 1024
_GRACE_S = 1.0


def limit_memory(mib: int) -> None:
    """Limit this process to `mib` MiB more memory than it uses now."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:  # not Linux: only time is limited
        return
    limit = pages * resource.getpagesize() + mib * _MIB
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def serve(connection: Connection, time_s: float) -> None:
    """Do the work that arrives on the connection until the other end closes it."""
    connection.send_bytes(b"ready")
    while True:
        try:
            work, arguments = connection.recv()
        except (EOFError, OSError):
            return
        signal.setitimer(signal.ITIMER_REAL, time_s + _GRACE_S)
        try:
            reply = pack_result(work, work(*arguments))
        except MemoryError:
            os._exit(1)  # the remaining memory is not worth keeping
        except BaseException as error:  # noqa: BLE001 - the caller raises it; a panic of Rust is no Exception
            reply = pack_error(error)
        signal.setitimer(signal.ITIMER_REAL, 0)
        connection.send_bytes(reply)


def main() -> None:
    """Serve the inherited socket."""
    file_descriptor, memory_mib, time_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    for number in (signal.SIGINT, signal.SIGTERM):  # the service handles them, ends its work and closes the socket
        signal.signal(number, signal.SIG_IGN)
    connection = Connection(file_descriptor)
    importlib.import_module(sys.argv[4])  # imported before the memory limit applies
    confine()
    threading.stack_size(STACK_BYTES)  # the main thread cannot have so large a stack
    thread = threading.Thread(target=serve, args=(connection, time_s), daemon=True)
    limit_memory(memory_mib + STACK_BYTES // _MIB)
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
