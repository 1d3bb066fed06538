"""A process that does the work of ProcessWorkers.

The command is `python -m pagantic_common.workers.worker FD MEMORY_MIB TIME_S MODULE [FOLDER...]`. The process reads
pickled functions with their arguments from a socket, writes the results as JSON, and exits when the socket is closed. A
timer signal ends the process if its work takes too long and its owner does not kill it.
"""

from __future__ import annotations

import importlib
import os
import resource
import signal
import sys
import threading
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

from pagantic_common.grammar.engine_text import STACK_BYTES
from pagantic_common.workers.confinement import confine
from pagantic_common.workers.replies import (
    MAX_GREETING_BYTES,
    READY,
    READY_WITHOUT_LANDLOCK,
    pack_error,
    pack_result,
)

_MIB = 1024 * 1024
_PACKAGES = ("pagantic", "services")
_GRACE_S = 1.0


def open_sizes() -> IO[str] | None:
    """Open the file that states the size of this process, or return None if the system has no such file."""
    try:
        return Path("/proc/self/statm").open(encoding="ascii")
    except OSError:
        return None


def limit_memory(sizes: IO[str] | None, mib: int) -> None:
    """Limit this process to `mib` MiB more memory than its current use, if the system reports its size."""
    if sizes is None:
        return
    limit = int(sizes.read().split()[0]) * resource.getpagesize() + mib * _MIB
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def import_packages(module: str) -> None:
    """Import the packages that contain the work's modules, so that a confined process finds these modules.

    The folder of a package stays readable, but its parent folder, such as the root of a checkout, does not.
    """
    for name in (*_PACKAGES, module.partition(".")[0]):
        with suppress(ImportError):
            importlib.import_module(name)


def serve(connection: Connection, time_s: float, greeting: bytes) -> None:
    """Send the greeting, and do the work that arrives on the connection until the other end closes it."""
    connection.send_bytes(greeting)
    while True:
        try:
            work, arguments = connection.recv()
        except (EOFError, OSError):
            return
        signal.setitimer(signal.ITIMER_REAL, time_s + _GRACE_S)
        try:
            reply = pack_result(work, work(*arguments))
        except MemoryError:
            os._exit(1)  # The remaining memory is not worth keeping.
        except BaseException as error:  # noqa: BLE001 - the caller raises it; a panic of Rust is no Exception
            reply = pack_error(error)
        signal.setitimer(signal.ITIMER_REAL, 0)
        connection.send_bytes(reply)


def main() -> None:
    """Serve the inherited socket."""
    file_descriptor, memory_mib, time_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    module, folders = sys.argv[4], sys.argv[5:]
    for number in (signal.SIGINT, signal.SIGTERM):  # The service handles both, ends its work and closes the socket.
        signal.signal(number, signal.SIG_IGN)
    connection = Connection(file_descriptor)
    import_packages(module)
    sizes = open_sizes()
    greeting = READY if confine(folders) else READY_WITHOUT_LANDLOCK
    try:
        importlib.import_module(module)  # The module's threads are confined, and its memory is not counted.
    except BaseException as error:  # noqa: BLE001 - a module may raise anything
        reason = f"cannot import {module}: {type(error).__name__}: {error}".encode(errors="replace")
        connection.send_bytes(reason[:MAX_GREETING_BYTES])
        sys.exit(1)
    limit_memory(sizes, memory_mib + STACK_BYTES // _MIB)
    threading.stack_size(STACK_BYTES)  # The main thread cannot have a stack of this size.
    thread = threading.Thread(target=serve, args=(connection, time_s, greeting), daemon=True)
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
