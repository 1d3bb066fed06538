"""Tools that are Python functions of the deployment."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import inspect
import os
import shutil
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

import psutil
import pydantic
from pydantic_core import to_json

from pagantic_common.domain.clock import Clock
from pagantic_common.domain.messages import ToolDefinition, ToolProgress
from pagantic_common.grammar.arguments import MAX_VIOLATIONS, ArgumentProblem, InvalidArguments, name_of
from pagantic_common.telemetry.scope import current_effect_id
from pagantic_common.tools import FunctionTool, ToolContext
from pagantic_common.tools.requirements import Requirement, RequirementKind
from pagantic_common.workers.fair_places import keep_place_until
from services.tools.ports import Report, make_places

KEPT_S = 2.0  # Tools are listed for every conversation, and a search of PATH reads many folders.


class Machine:
    """Checks requirements on the machine that runs the tools.

    Results are cached for two seconds, so a new program is found soon after its installation.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._reasons: dict[Requirement, tuple[float, str]] = {}

    def lacks(self, requirements: Iterable[Requirement]) -> str:
        """Return the first missing requirement with its remedy, or an empty string if none is missing."""
        return next(filter(None, map(self._reason_of, requirements)), "")

    def _reason_of(self, requirement: Requirement) -> str:
        now_s = self._clock.monotonic_s()
        until_s, reason = self._reasons.get(requirement, (now_s, ""))
        if now_s >= until_s:
            reason = _look_for(requirement)
            self._reasons[requirement] = now_s + KEPT_S, reason
        return reason


def _look_for(requirement: Requirement) -> str:
    name = requirement.name
    match requirement.kind:
        case RequirementKind.NETWORK:
            if not _has_network():
                return (
                    "it requires the network, and no network interface is up: connect the machine of the tools service"
                )
        case RequirementKind.BINARY:
            if shutil.which(name) is None:
                return (
                    f"it requires the program {name!r}, which is not on the PATH of the tools service: install it there"
                )
        case RequirementKind.ENV:
            if not os.environ.get(name):
                return f"it requires the environment variable {name}: set it, and restart the tools service"
    return ""


def _has_network() -> bool:
    """Return whether an interface other than the loopback is up."""
    return any(stats.isup and "loopback" not in stats.flags for stats in psutil.net_if_stats().values())


class FunctionToolAdapter:
    """Calls a function. An async function runs in the event loop, and any other function in a separate thread.

    A function may ask other systems, so it counts as remote. Raises InvalidRequest if a requirement of the tool has an
    unknown form.
    """

    is_remote = True

    def __init__(self, tool: FunctionTool[..., Any], machine: Machine) -> None:
        self._tool = tool
        self._machine = machine
        self._requirements = [Requirement.parse(text) for text in tool.definition.requires]
        self.places = make_places(tool.max_concurrent, max(1, tool.max_concurrent * 3 // 4))
        self._abandoned: set[Future[str]] = set()  # calls that still run without a caller
        self._in_threads: dict[str, Future[str]] = {}  # calls that run in threads, by effect id

    @property
    def definition(self) -> ToolDefinition:
        """The definition of the tool, as models see it."""
        return self._tool.definition

    @property
    def unavailable_reason(self) -> str:
        """The reason why the tool cannot be called, or an empty string if it can.

        The tool is unavailable if all its threads are stuck in calls that never return, or if the machine lacks a
        requirement.
        """
        if len(self._abandoned) >= self._tool.max_concurrent:
            return f"{len(self._abandoned)} of its calls were given up and still run"
        return self._machine.lacks(self._requirements)

    async def run(self, arguments: Mapping[str, Any], report: Report) -> str:
        """Return the result; as JSON if it is not text. Raises InvalidArguments, ToolFailed or the function's error."""
        context = ToolContext(partial(_call_in, asyncio.get_running_loop(), report), effect_id=current_effect_id())
        try:
            values = self._tool.parameters.read(arguments)
        except pydantic.ValidationError as error:
            raise _refusal(error) from None
        if self._tool.parameters.context_name:
            values[self._tool.parameters.context_name] = context
        try:
            if self._tool.is_async:
                return _text_of(await self._tool.function(**values))
            return await self._call_in_thread(values)
        except (SystemExit, KeyboardInterrupt) as error:
            raise _as_error(error) from error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise _as_error(error) from error
        finally:
            context.cancel()

    async def outcome(self, effect_id: str) -> str:
        """Return the result of a lost call, which may still run in its thread.

        Raises ToolNotRun, or LookupError if the outcome is unknown.
        """
        if (running := self._in_threads.get(effect_id)) is not None:
            return await asyncio.wrap_future(running)
        function = self._tool.outcome_function
        if function is None:
            raise LookupError(f"tool {self.definition.name!r} has no function for outcomes")
        if inspect.iscoroutinefunction(function):
            return _text_of(await function(effect_id))
        return _text_of(await asyncio.to_thread(function, effect_id))

    def _forget(self, effect_id: str, ended: Future[str]) -> None:
        self._abandoned.discard(ended)
        if self._in_threads.get(effect_id) is ended:
            del self._in_threads[effect_id]

    async def _call_in_thread(self, values: Mapping[str, Any]) -> str:
        """Call the function in a thread. The call holds its place until the function returns, even without a caller."""
        loop, context = asyncio.get_running_loop(), contextvars.copy_context()
        future: Future[str] = Future()
        effect_id = current_effect_id()
        self._in_threads[effect_id] = future

        def work() -> None:
            try:
                future.set_result(_text_of(context.run(self._tool.function, **values)))
            except BaseException as error:  # noqa: BLE001 - the caller gets it
                future.set_exception(_as_error(error))
            with contextlib.suppress(RuntimeError):  # the event loop was closed meanwhile
                loop.call_soon_threadsafe(self._forget, effect_id, future)

        future.set_running_or_notify_cancel()
        # The thread is a daemon, so a function that never returns cannot block the shutdown of the service.
        thread = threading.Thread(target=work, name=f"tool-{self.definition.name}", daemon=True)
        thread.start()  # raises RuntimeError if the process is out of threads
        keep_place_until(future)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if not future.done():
                self._abandoned.add(future)
            raise


def _call_in(loop: asyncio.AbstractEventLoop, report: Report, progress: ToolProgress) -> None:
    with contextlib.suppress(RuntimeError):  # the event loop was closed meanwhile
        loop.call_soon_threadsafe(report, progress)


def _as_error(error: BaseException) -> Exception:
    """Convert an error to an exception that asyncio can propagate, so that no function can end the service."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration | concurrent.futures.CancelledError):
        return error
    return RuntimeError(f"the function raised {type(error).__name__}")


def _refusal(error: pydantic.ValidationError) -> InvalidArguments:
    """Return the error for invalid arguments, without the values that the caller sent."""
    problems = []
    for detail in error.errors(include_input=False, include_url=False, include_context=False):
        name = name_of(detail["loc"])
        problems.append(ArgumentProblem(name, f"argument {name!r}: {detail['msg']}"))
    return InvalidArguments(*problems[:MAX_VIOLATIONS])


def _text_of(result: Any) -> str:
    if isinstance(result, str):
        return result
    return to_json(result, inf_nan_mode="strings").decode()
