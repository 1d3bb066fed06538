"""A worker process, and the socket to it."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection
from typing import Any, cast

import psutil

from pagantic_common.domain.errors import ErrorCode, InvalidRequest, Unavailable
from pagantic_common.run import command
from pagantic_common.telemetry.logging import get_logger
from pagantic_common.workers.replies import (
    MAX_GREETING_BYTES,
    MAX_REPLY_BYTES,
    READY,
    READY_WITHOUT_LANDLOCK,
    ReplyTooLarge,
    unpack,
)

log = get_logger(__name__)

MODULE = "pagantic_common.workers.worker"
START_TIMEOUT_S = 60.0
RETRY_AFTER_S = 1.0
# A worker gets only these variables, which Python needs to find modules. Other variables may hold secrets.
ENVIRONMENT = ("PYTHONHOME", "PYTHONPATH", "PYTHONSAFEPATH", "PYTHONDONTWRITEBYTECODE", "LD_LIBRARY_PATH")
# Work below this share of processor time was starved, not slow, so it gets more time.
STARVED_RATIO = 0.5
IDLE_RATIO = 0.02  # A process without computation is waiting, and gets no more time.
STARVED_WINDOWS = 4

Job = tuple[Callable[..., Any], tuple[object, ...]]


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """The number of processes, the time and memory of a unit of work, and the maximum number of waiting units.

    A process imports `module`, with everything that the work needs, before its memory is limited. `advice` is the
    remedy for work that exceeds a limit. `folders` are the folders whose files the work may read, in addition to
    Python's.
    """

    processes: int
    time_s: float
    memory_mib: int
    queue_capacity: int
    module: str
    advice: str = "make the schema, grammar, rule or text simpler"
    folders: tuple[str, ...] = ()


@cache  # Once per process.
def _warn_of_missing_landlock() -> None:
    log.warning("workers are confined without Landlock", consequence="they can read the files of the service's user")


class _WorkerGoneError(Exception):
    """The process died during its work."""


class WorkerProcess:
    """A process that does one unit of work at a time.

    Its methods may block. Call them, except for `kill`, from one thread at a time.
    """

    def __init__(self, limits: WorkerLimits) -> None:
        self._limits = limits
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    @property
    def is_alive(self) -> bool:
        """Whether the process is running."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """End the previous process, if any, and start a new process. Raises Unavailable if it cannot be started."""
        self.stop()
        try:
            self._spawn()
            greeting = self._receive_greeting()
        except (OSError, EOFError) as error:
            greeting = str(error).encode() or b"it ended while it started"
        if greeting == READY_WITHOUT_LANDLOCK:
            _warn_of_missing_landlock()
        elif greeting != READY:
            self.stop()
            reason = greeting.decode(errors="replace")
            raise Unavailable(f"no worker process can be started: {reason}", retry_after_s=RETRY_AFTER_S)

    def _receive_greeting(self) -> bytes:
        if not self._socket.poll(START_TIMEOUT_S):
            raise TimeoutError(f"it is not ready after {START_TIMEOUT_S:g} s")
        return self._socket.recv_bytes(MAX_GREETING_BYTES)

    def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._connection = Connection(ours.detach())
            limits = self._limits
            longest_s = limits.time_s * STARVED_WINDOWS  # `_ask` ends work by then, and can state the reason.
            arguments = [str(theirs.fileno()), str(limits.memory_mib), str(longest_s), limits.module]
            arguments += limits.folders
            self._process = subprocess.Popen(
                command(MODULE, *arguments),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
            )

    @property
    def _socket(self) -> Connection:
        return cast("Connection", self._connection)

    def kill(self) -> None:
        """End the process. A waiting `call` then raises an error. May be called from any thread."""
        process = self._process
        if process is not None:
            process.kill()

    def stop(self) -> None:
        """End the process, and release its connection."""
        self.kill()
        if self._process is not None:
            self._process.wait()
        if self._connection is not None:
            self._connection.close()
        self._process = self._connection = None

    def call(self, job: Job) -> Any:
        """Do a unit of work. If its process dies, repeat the work once, because the work may not be the cause.

        Raises the errors of the work, and InvalidRequest (CONSTRAINT_TOO_COMPLEX) if the work exceeds a limit. Raises
        Unavailable if the process got too little processor time for a verdict on the work, or if it cannot be started.
        """
        for attempt in (1, 2):
            if not self.is_alive:  # The process died while idle.
                self.start()
            try:
                return unpack(job[0], self._ask(job))
            except ReplyTooLarge:
                raise self._too_complex("too much room for its result") from None
            except _WorkerGoneError:
                self.stop()
                log.warning("a worker process died", attempt=attempt)
        raise self._too_complex(f"more than {self._limits.memory_mib} MiB, or ends its process otherwise")

    def _ask(self, job: Job) -> bytes:
        time_s = self._limits.time_s
        before_s = self._cpu_s()
        has_ended = threading.Event()
        used_s: list[float] = []

        def kill_slow() -> None:
            for window in range(1, STARVED_WINDOWS + 1):
                if has_ended.wait(time_s):
                    return
                used = self._cpu_s() - before_s
                is_starved = IDLE_RATIO * time_s < used < STARVED_RATIO * time_s
                if has_ended.is_set():
                    return
                if not is_starved or window == STARVED_WINDOWS:
                    used_s.append(used)
                    self.kill()
                    return

        # The watch also covers sending, because a stopped process does not read from the socket.
        watch = threading.Thread(target=kill_slow, name="worker-watch", daemon=True)
        watch.start()
        try:
            self._socket.send_bytes(pickle.dumps(job))
            return self._socket.recv_bytes(1 + MAX_REPLY_BYTES)  # A long reply is refused before it takes memory.
        except (EOFError, OSError):
            if not used_s:
                raise _WorkerGoneError from None
            self.stop()  # Waits for the process, so that it no longer counts as alive.
            if used_s[0] < STARVED_RATIO * time_s:
                raise Unavailable(
                    "the work got too little of the processor to be done in time", retry_after_s=RETRY_AFTER_S
                ) from None
            raise self._too_complex(f"more than {time_s:g} s") from None
        finally:
            has_ended.set()

    def _cpu_s(self) -> float:
        if self._process is None:
            return 0.0
        try:
            times = psutil.Process(self._process.pid).cpu_times()
        except psutil.Error:
            return 0.0
        return float(times.user + times.system)

    def _too_complex(self, what: str) -> InvalidRequest:
        return InvalidRequest(f"this takes {what}: {self._limits.advice}", code=ErrorCode.CONSTRAINT_TOO_COMPLEX)
