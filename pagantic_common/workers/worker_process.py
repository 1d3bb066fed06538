"""One worker process and the socket to it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, cast

import psutil

from pagantic_common.domain.errors import ErrorCode, InvalidRequest, Unavailable
from pagantic_common.telemetry.logging import get_logger
from pagantic_common.workers.replies import ReplyTooLarge, unpack

log = get_logger(__name__)

MODULE = "pagantic_common.workers.worker"
START_TIMEOUT_S = 60.0
RETRY_AFTER_S = 1.0
# All that a worker gets of the environment: where Python finds modules. The rest may hold secrets.
ENVIRONMENT = ("PYTHONHOME", "PYTHONPATH", "PYTHONSAFEPATH", "PYTHONDONTWRITEBYTECODE", "LD_LIBRARY_PATH")
STARVED_RATIO = 0.5  # below this share of the processor, work was starved and not slow

Job = tuple[Callable[..., Any], tuple[object, ...]]


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """How many processes there are, what one piece of work may take, and how much work may wait.

    `module` is imported before memory is bounded: what the work needs.
    """

    processes: int
    time_s: float
    memory_mib: int
    queue_capacity: int
    module: str


class _WorkerGoneError(Exception):
    """The process died while it worked."""


class WorkerProcess:
    """A process that does one piece of work at a time. Its methods block, and are called by one thread at a time."""

    def __init__(self, limits: WorkerLimits) -> None:
        self._limits = limits
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    @property
    def is_alive(self) -> bool:
        """Whether there is a process that runs."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start a process in place of the one before, if there was one. Raises Unavailable."""
        self.stop()
        try:
            self._spawn()
            if not self._socket.poll(START_TIMEOUT_S):
                raise TimeoutError(f"it is not ready after {START_TIMEOUT_S:g} s")
            self._socket.recv_bytes()
        except (OSError, EOFError) as error:
            self.stop()
            reason = str(error) or "it ended while it started"
            raise Unavailable(f"no worker process can be started: {reason}", retry_after_s=RETRY_AFTER_S) from None

    def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._connection = Connection(ours.detach())
            limits = self._limits
            arguments = [str(theirs.fileno()), str(limits.memory_mib), str(limits.time_s), limits.module]
            self._process = subprocess.Popen(
                [sys.executable, "-m", MODULE, *arguments],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
            )

    @property
    def _socket(self) -> Connection:
        return cast("Connection", self._connection)

    def kill(self) -> None:
        """End the process; whoever waits for it learns of it. May be called from any thread."""
        process = self._process
        if process is not None:
            process.kill()

    def stop(self) -> None:
        """End the process and forget it."""
        self.kill()
        if self._process is not None:
            self._process.wait()
        if self._connection is not None:
            self._connection.close()
        self._process = self._connection = None

    def call(self, job: Job) -> Any:
        """Do a piece of work, once more where its process died: that may not have been its fault.

        Raises what the work raises, InvalidRequest (CONSTRAINT_TOO_COMPLEX) for work that takes too much, and
        Unavailable when that cannot be told because the process got no processor, or when none can be started.
        """
        for attempt in (1, 2):
            if not self.is_alive:  # one that died while it was idle is nobody's fault
                self.start()
            try:
                return unpack(job[0], self._ask(job))
            except ReplyTooLarge:
                raise _too_complex("too much room for its result") from None
            except _WorkerGoneError:
                self.stop()
                log.warning("a worker process died", attempt=attempt)
        raise _too_complex(f"more than {self._limits.memory_mib} MiB, or ends its process otherwise")

    def _ask(self, job: Job) -> bytes:
        time_s = self._limits.time_s
        used_before_s, started_s = self._cpu_s(), time.monotonic()
        # A process that is stopped takes nothing from the socket, so that neither sending nor receiving would end.
        used_s: list[float] = []
        alarm = threading.Timer(time_s, self._kill_slow, (used_s,))
        alarm.start()
        try:
            self._socket.send(job)
            return self._socket.recv_bytes()
        except (EOFError, OSError):
            if not used_s:
                raise _WorkerGoneError from None
            took_s = time.monotonic() - started_s
            self.stop()  # waits for the process, so that it is not taken for a living one
            if used_s[0] - used_before_s < STARVED_RATIO * min(took_s, time_s):
                raise Unavailable(
                    "the work got too little of the processor to be done in time", retry_after_s=RETRY_AFTER_S
                ) from None
            raise _too_complex(f"more than {time_s:g} s") from None
        finally:
            alarm.cancel()

    def _kill_slow(self, used_s: list[float]) -> None:
        used_s.append(self._cpu_s())
        self.kill()

    def _cpu_s(self) -> float:
        process = self._process
        try:
            times = psutil.Process(process.pid).cpu_times() if process is not None else None
        except psutil.Error:
            times = None
        return times.user + times.system if times else 0.0


def _too_complex(what: str) -> InvalidRequest:
    return InvalidRequest(
        f"this takes {what}: make the schema, grammar, rule or text simpler", code=ErrorCode.CONSTRAINT_TOO_COMPLEX
    )
