"""The process of a server: it runs in a separate process group with a minimal environment, and is always ended."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from asyncio.subprocess import PIPE, Process, SubprocessStreamProtocol
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from pagantic_common.telemetry.logging import get_logger
from services.tools.core.servers import ProgramTransport
from services.tools.ports import ServerLost

log = get_logger(__name__)

# Programs need these variables to find their files and to write text. Other variables may hold secrets.
ENVIRONMENT = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR")
_CHILD = Path(__file__).with_name("child.py")
_GRACE_S = 2.0
_LOGGED_CHARS = 1000
_LOG_INTERVAL_S = 0.1


@asynccontextmanager
async def running_process(transport: ProgramTransport, name: str, line_limit_bytes: int) -> AsyncIterator[Process]:
    """Start a program. On exit, close its input, then end its process group. Raises ServerLost if it cannot start.

    The program's error output is logged at level debug.
    """
    environment = _environment_of(transport)
    _check_program(transport, environment)
    loop = asyncio.get_running_loop()
    try:
        owner, protocol = await loop.subprocess_exec(
            lambda: SubprocessStreamProtocol(limit=line_limit_bytes, loop=loop),
            *(sys.executable, "-I", "-S", str(_CHILD), str(os.getpid()), *transport.argv),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=environment,
            cwd=transport.folder,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise ServerLost(f"its program cannot be started: {error}") from None
    process = Process(owner, protocol, loop)
    logging = asyncio.create_task(_log_errors(process, name))
    try:
        yield process
    finally:
        try:
            await _end(process)
        finally:
            logging.cancel()
            owner.close()  # a process that left the group may hold the pipes open
            await asyncio.gather(logging, return_exceptions=True)


def _environment_of(transport: ProgramTransport) -> Mapping[str, str]:
    inherited = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    return inherited | dict(transport.environment)


def _check_program(transport: ProgramTransport, environment: Mapping[str, str]) -> None:
    program = transport.argv[0]
    path = environment.get("PATH", os.defpath)
    if shutil.which(program, path=path) is None and not (transport.folder and os.sep in program):
        raise ServerLost(f"program {program!r} is not found, or may not be run: install it, or give its path")


async def _end(process: Process) -> None:
    """Close the input, as the protocol requires. A surviving program gets SIGTERM, and its group gets SIGKILL."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        for sent in (signal.SIGTERM, signal.SIGKILL):
            if await _has_exited_in_time(process):
                return
            _signal_group(process, sent)
    finally:  # also runs if this wait is cancelled
        _signal_group(process, signal.SIGKILL)  # also ends the processes that the program left behind
        if not await _has_exited_in_time(process):
            log.warning("mcp server's program cannot be ended", process_id=process.pid)


async def _has_exited_in_time(process: Process) -> bool:
    try:
        async with asyncio.timeout(_GRACE_S):
            await wait_until_exited(process)
    except TimeoutError:
        return False
    return True


async def wait_until_exited(process: Process) -> None:
    """Wait only for the process. `wait` would also wait for pipes that other processes may hold open."""
    while process.returncode is None:  # noqa: ASYNC110 - there is no event for it
        await asyncio.sleep(0.01)


def _signal_group(process: Process, sent: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, sent)


async def _log_errors(process: Process, name: str) -> None:
    """Read standard error, so that the program does not block, and log a part of it."""
    reader = process.stderr
    output_log = OutputLog(name, "mcp server's errors")
    while reader is not None and (chunk := await reader.read(65_536)):
        output_log.note(chunk)


class OutputLog:
    """Logs a part of a program's output at level debug, limited in case the program never stops writing."""

    def __init__(self, server: str, event: str) -> None:
        self._server = server
        self._event = event
        self._loop = asyncio.get_running_loop()
        self._logged_s = -_LOG_INTERVAL_S

    def note(self, output: bytes) -> None:
        """Log the beginning of the output, unless output was logged within the last 0.1 s."""
        if self._loop.time() - self._logged_s >= _LOG_INTERVAL_S:
            self._logged_s = self._loop.time()
            log.debug(self._event, server=self._server, text=output[:_LOGGED_CHARS].decode(errors="replace"))
