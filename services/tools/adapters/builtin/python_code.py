"""Runs Python code in limited worker processes of Monty, an interpreter without files, network and processes.

A worker returns only text: it applies `repr` to a value itself. Converting values here could take unlimited memory, for
example for a list that contains the same list a thousand times.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from pagantic_common.domain.messages import ToolDefinition, ToolFailed, ToolSafety
from pagantic_common.workers.fair_places import keep_place_until
from services.tools.adapters.builtin.parameters import object_schema
from services.tools.ports import Report, make_places

if TYPE_CHECKING:
    import pydantic_monty

MAX_CODE_CHARS = 20_000
MAX_RUN_S = 5.0
MAX_MEMORY_BYTES = 64 * 1024 * 1024
MAX_FRAMES = 500
MAX_WORKERS = 3
MAX_WORKERS_OF_TENANT = 2
MAX_RUNS_OF_WORKER = 100
_GRACE_S = 1.0  # the interpreter stops after MAX_RUN_S, and its process is killed this much later
_MAX_ERROR_CHARS = 2000

# An expression returns its value. Any other code returns its output.
_PROGRAM = """
def run(code):
    is_expression = True
    try:
        value = eval(code, {})
    except SyntaxError:
        is_expression = False
    if not is_expression:
        exec(code, {})
    elif value is not None:
        print(repr(value))

run(code)
None
"""


class _Worker:
    """The process that runs the code of a call, and that another thread may stop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid: int | None = None
        self._is_stopped = False

    @contextmanager
    def running(self, pid: int | None) -> Iterator[None]:
        """Record the process while it runs the code. Raises ToolFailed if the call has already been stopped."""
        with self._lock:
            if self._is_stopped:
                raise ToolFailed("the caller has gone")
            self._pid = pid
        try:
            yield
        finally:
            with self._lock:
                self._pid = None

    def stop(self) -> None:
        """Kill the process, now or as soon as it starts. The pool starts a replacement."""
        with self._lock, contextlib.suppress(ProcessLookupError):
            self._is_stopped = True
            if self._pid is not None:
                os.kill(self._pid, signal.SIGKILL)


class PythonTool:
    """Runs an expression or a program.

    Args:
        pool: The worker processes. None if Monty is not installed.
        max_bytes: The maximum size of the output of a program.
        unavailable_reason: The reason for the missing pool.
    """

    definition = ToolDefinition(
        name="python",
        description=(
            "Runs Python code that only computes: without files, network and packages; math, re, json and datetime are "
            "there. An expression gives its value; a program gives what it prints."
        ),
        parameters_json=object_schema(
            ("code",),
            code={
                "type": "string",
                "description": "the code, for example sum(n * n for n in range(10))",
                "minLength": 1,
                "maxLength": MAX_CODE_CHARS,
            },
        ),
        safety=ToolSafety.NONE,
        idempotent=True,
        timeout_s=MAX_RUN_S + 5,
    )
    is_remote = False

    def __init__(self, pool: pydantic_monty.Monty | None, max_bytes: int, unavailable_reason: str = "") -> None:
        self._pool = pool
        self._max_bytes = max_bytes
        self.places = make_places(MAX_WORKERS, MAX_WORKERS_OF_TENANT)
        self.unavailable_reason = unavailable_reason

    async def run(self, arguments: Mapping[str, Any], _report: Report) -> str:
        """Return the output of the code. Raises ToolFailed. Cancelling the call stops the code."""
        worker = _Worker()
        running = asyncio.get_running_loop().run_in_executor(None, self._run, arguments["code"], worker)
        keep_place_until(running)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            worker.stop()
            raise

    def _run(self, code: str, worker: _Worker) -> str:
        import pydantic_monty  # noqa: PLC0415 - only where there is a pool

        if self._pool is None:
            raise ToolFailed(self.unavailable_reason)
        printed = pydantic_monty.CollectString(max_bytes=self._max_bytes)
        limits: pydantic_monty.ResourceLimits = {
            "max_feed_duration_secs": MAX_RUN_S,
            "max_memory": MAX_MEMORY_BYTES,
            "max_recursion_depth": MAX_FRAMES,
            "max_suspensions": 10,
            "max_total_sleep_secs": 0,
        }
        try:
            code.encode()
            checkout = self._pool.checkout(limits=limits, os_policy={"sleep": "zero"}, script_name="tool.py")
            with checkout as session, worker.running(session.worker_pid):
                session.feed_run(_PROGRAM, inputs={"code": code}, print_callback=printed)
        except UnicodeEncodeError:
            raise ToolFailed("the code is not valid Unicode") from None
        except RuntimeError:  # no worker could be started
            raise ToolFailed("the interpreter cannot be started: try again later", is_final=False) from None
        except pydantic_monty.MontyCrashedError:
            raise ToolFailed("the code took too much time or memory: compute less") from None
        except pydantic_monty.MontyRuntimeError as error:
            raise ToolFailed(f"the code failed: {_reason_of(error)}") from None
        except pydantic_monty.MontyError as error:
            raise ToolFailed(f"the code is not valid: {str(error)[:_MAX_ERROR_CHARS]}") from None
        return printed.output


def _reason_of(error: pydantic_monty.MontyRuntimeError) -> str:
    """Format the error as Python does, with the line number in the code."""
    lines = [frame.line for frame in error.traceback() if frame.filename == "<string>"]
    where = ""
    if lines:
        where = f"line {lines[-1]}: "
    return where + error.display("type-msg")[:_MAX_ERROR_CHARS]


@asynccontextmanager
async def open_python_tool(max_bytes: int) -> AsyncIterator[PythonTool]:
    """Yield the tool. Without Monty, the tool exists but is unavailable."""
    pool = _make_pool()
    if pool is None:
        yield PythonTool(None, max_bytes, "the package pydantic-monty is not installed")
        return
    with pool:
        yield PythonTool(pool, max_bytes)


def _make_pool() -> pydantic_monty.Monty | None:
    """Return a pool that starts workers on demand, or None if the package or its program is missing.

    Threads wait for the workers, because the asynchronous pool may abort this process when the pool ends.
    """
    try:
        import pydantic_monty  # noqa: PLC0415 - may be absent on this platform

        return pydantic_monty.Monty(
            min_processes=0,
            max_processes=MAX_WORKERS,
            checkout_timeout=MAX_RUN_S + 2 * _GRACE_S,
            request_timeout=MAX_RUN_S + _GRACE_S,
            max_checkouts_per_worker=MAX_RUNS_OF_WORKER,
            feed_duration_limit_grace=_GRACE_S,
        )
    except (ImportError, FileNotFoundError):
        return None
