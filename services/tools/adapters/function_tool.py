"""Tools that are Python functions of the deployment."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

import pydantic
from pydantic_core import to_json

from pagantic_common.domain.messages import ToolDefinition, ToolProgress
from pagantic_common.grammar.arguments import MAX_VIOLATIONS, ArgumentProblem, InvalidArguments, name_of
from pagantic_common.tools import FunctionTool, ToolContext
from pagantic_common.tools.requirements import Requirement
from pagantic_common.workers.fair_places import keep_place_until
from services.tools.adapters.requirements import Machine
from services.tools.ports import Report, make_places


class FunctionToolAdapter:
    """Calls a function. An async function runs in the event loop, and any other function runs in a separate thread.

    A function may ask other systems, so it counts as remote. Raises InvalidRequest if a requirement of the tool has an
    unknown form.
    """

    is_remote = True

    def __init__(self, tool: FunctionTool[..., Any], machine: Machine) -> None:
        self._tool = tool
        self._machine = machine
        self._requirements = [Requirement.parse(text) for text in tool.definition.requires]
        self.places = make_places(tool.max_concurrent, max(1, tool.max_concurrent * 3 // 4))
        self._abandoned: set[Future[str]] = set()  # calls without a waiting caller

    @property
    def definition(self) -> ToolDefinition:
        """The definition of the tool, as models see it."""
        return self._tool.definition

    @property
    def unavailable_reason(self) -> str:
        """The reason that the tool cannot be called.

        Calls that never return occupy all its threads, or the machine lacks a requirement.
        """
        if len(self._abandoned) >= self._tool.max_concurrent:
            return f"{len(self._abandoned)} of its calls were given up and still run"
        return self._machine.lacks(self._requirements)

    async def run(self, arguments: Mapping[str, Any], report: Report) -> str:
        """Return the result, as JSON unless it is text. Raises InvalidArguments, ToolFailed or the function's error."""
        context = ToolContext(partial(_call_in, asyncio.get_running_loop(), report))
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

    async def _call_in_thread(self, values: Mapping[str, Any]) -> str:
        """Call the function in a thread. It keeps its place until the function returns, even if the caller has left."""
        loop, context = asyncio.get_running_loop(), contextvars.copy_context()
        future: Future[str] = Future()

        def work() -> None:
            try:
                future.set_result(_text_of(context.run(self._tool.function, **values)))
            except BaseException as error:  # noqa: BLE001 - the caller gets it
                future.set_exception(_as_error(error))
            with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile
                loop.call_soon_threadsafe(self._abandoned.discard, future)

        future.set_running_or_notify_cancel()
        # A function that never returns must not prevent the service from ending.
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
    with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
        loop.call_soon_threadsafe(report, progress)


def _as_error(error: BaseException) -> Exception:
    """Convert an error to an exception that a task can hold, so that no function can end the service."""
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
