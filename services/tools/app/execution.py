"""Runs a tool call: checks its arguments, limits its time, retries it, and returns every failure as a value.

The module works for any tool.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pagantic_common.domain.backoff import Backoff
from pagantic_common.domain.calls.breaker import THRESHOLD, Breaker
from pagantic_common.domain.clock import Clock
from pagantic_common.domain.deadline import Deadline
from pagantic_common.domain.errors import ErrorCode, Failure, Overloaded, failure_of
from pagantic_common.domain.messages import (
    Ending,
    LostCall,
    ToolCall,
    ToolDefinition,
    ToolFailed,
    ToolProgress,
    ToolResult,
)
from pagantic_common.domain.text.json_text import dump_json
from pagantic_common.grammar.arguments import ArgumentChecker, InvalidArguments
from pagantic_common.telemetry.logging import get_logger, report_bug
from pagantic_common.telemetry.scope import current_effect_id, current_principal
from pagantic_common.tools import ToolDenied, ToolHook, ToolNotRun
from services.tools.app.registry import ToolRegistry
from services.tools.ports import KnowsOutcomes, Rates, Report, Tool, ToolUnavailable

FIRST_OPEN_S, MAX_OPEN_S, PROBE_S = 5.0, 60.0, 60.0
MAX_BREAKERS = 4096
MAX_WAIT_S = 60.0  # maximum wait for a place
MAX_REASON_CHARS = 4096
OUTCOME_S = 5.0

log = get_logger(__name__)


class CallGuard:
    """The rate limits of tools, if any, and a circuit breaker for each remote tool and each tenant that calls it.

    `rates` is None if there are no limits. A failure that the tool itself reports counts as an answer. A call cancelled
    by its caller counts neither as an answer nor as a failure. Breakers are per tenant, because a tenant's arguments
    alone may keep a tool from answering. Only the most recently used breakers are kept.
    """

    def __init__(self, rates: Rates | None, clock: Clock) -> None:
        self._rates = rates
        self._clock = clock
        self._breakers: OrderedDict[tuple[str, str], Breaker] = OrderedDict()

    async def refusal_of(self, tool: Tool) -> str:
        """Return the reason for refusing a call now, or count the call as permitted and return an empty string."""
        if self._rates is not None and (refusal := await self._rates.take(tool.definition.name)):
            return refusal
        if not tool.is_remote:
            return ""
        wait_s = self._breaker_of(tool).admit(self._clock.monotonic_s())
        if wait_s > 0:
            return f"{THRESHOLD} consecutive calls got no answer: the next attempt is in {wait_s:.1f} s"
        return ""

    def note_answer(self, tool: Tool) -> None:
        """Record that a tool answered."""
        if tool.is_remote:
            self._breaker_of(tool).note_answer()

    def note_silence(self, tool: Tool) -> None:
        """Record that a tool could not be reached or was too slow."""
        if tool.is_remote:
            self._breaker_of(tool).note_failure(self._clock.monotonic_s())

    def _breaker_of(self, tool: Tool) -> Breaker:
        key = current_principal().tenant, tool.definition.name
        breaker = self._breakers.setdefault(key, Breaker(FIRST_OPEN_S, MAX_OPEN_S, PROBE_S))
        self._breakers.move_to_end(key)
        if len(self._breakers) > MAX_BREAKERS:
            self._breakers.popitem(last=False)
        return breaker


@dataclass(frozen=True, slots=True)
class ExecutionLimits:
    """Limits of time, attempts and size. A tool's own timeout replaces `default_timeout_s`.

    The tool's timeout limits each attempt, and the caller's timeout limits all attempts together. The wait before
    retry k (from 1) is `backoff_s * 2**(k - 1)`.
    """

    default_timeout_s: float = 30.0
    max_retries: int = 2
    backoff_s: float = 0.05
    max_result_bytes: int = 65_536


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a call. `attempts` is 0 if the tool did not run."""

    result: ToolResult
    failure: Failure | None
    duration_s: float
    attempts: int


class _NoPlace(Exception):
    """The call got no place. It did not run, so it may be retried even if the tool has effects."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.failure = failure_of(code, message, tool_is_idempotent=True)


class ToolExecutor:
    """Executes calls of registered tools."""

    def __init__(
        self,
        registry: ToolRegistry,
        clock: Clock,
        limits: ExecutionLimits,
        rates: Rates | None = None,
        hooks: Sequence[ToolHook] = (),
    ) -> None:
        self._registry = registry
        self._guard = CallGuard(rates, clock)
        self._hooks = hooks
        self._clock = clock
        self._limits = limits

    async def follow(self, call: ToolCall, deadline: Deadline) -> AsyncGenerator[ToolProgress | Outcome, None]:
        """Run a call. Each step of the generator yields the newest progress, and the last step the outcome."""
        has_news = asyncio.Event()
        newest: list[ToolProgress] = []

        def report(progress: ToolProgress) -> None:
            newest[:] = [progress]
            has_news.set()

        running = asyncio.create_task(self.execute(call, deadline, report))
        running.add_done_callback(lambda _: has_news.set())
        try:
            while not running.done():
                await has_news.wait()
                has_news.clear()
                if newest:
                    yield newest.pop()
            yield running.result()
        finally:
            running.cancel()
            await asyncio.wait([running])

    async def execute(self, call: ToolCall, deadline: Deadline, report: Report = lambda _: None) -> Outcome:
        """Run a call and return its outcome. A failure is part of the outcome and is never raised."""
        started_s = self._clock.monotonic_s()
        content, attempts = await self._run(call, deadline, report)
        duration_s = self._clock.monotonic_s() - started_s
        failure: Failure | None = None
        code: ErrorCode | None = None
        if isinstance(content, Failure):
            failure = content
            code = failure.code
            content = failure.message
        log.info(
            "tool executed",
            tool=call.name[:64],
            tool_call_id=call.id,
            attempts=attempts,
            duration_ms=round(duration_s * 1000, 3),
            code=code,
        )
        result = ToolResult(call_id=call.id, name=call.name, content=content, is_error=failure is not None)
        return Outcome(result, failure, duration_s, attempts)

    async def _run(self, call: ToolCall, deadline: Deadline, report: Report) -> tuple[str | Failure, int]:
        """Return the result or the failure of a call, and the number of attempts."""
        tool = self._registry.find(call.name)
        if tool is None:
            return failure_of(ErrorCode.TOOL_NOT_FOUND, self._registry.describe_unknown(call.name)), 0
        if reason := tool.unavailable_reason:
            return _unavailable(tool.definition, reason), 0
        checker = self._registry.checker_of(call.name)
        try:
            arguments = checker.parse(call.arguments_json)
        except InvalidArguments as error:
            return _refuse_arguments(call.name, error), 0
        if refusal := await self._guard.refusal_of(tool):
            return _unavailable(tool.definition, refusal), 0
        run = partial(run_with_hooks, tool, arguments, checker, self._hooks, report)
        return await self._attempt_all(run, tool, deadline)

    async def find_outcome(self, name: str, effect_id: str) -> LostCall:
        """Ask a tool for the outcome of a lost call. It is UNKNOWN unless the tool answers within OUTCOME_S seconds."""
        tool = self._registry.find(name)
        if not isinstance(tool, KnowsOutcomes) or not effect_id:
            return LostCall(Ending.UNKNOWN)
        try:
            async with asyncio.timeout(OUTCOME_S):
                result = await tool.outcome(effect_id)
        except ToolNotRun:
            return LostCall(Ending.NOT_RUN)
        except (LookupError, TimeoutError, ToolFailed):
            return LostCall(Ending.UNKNOWN)
        except Exception as error:  # noqa: BLE001 - a tool may raise anything
            report_bug(log, error, tool=name)
            return LostCall(Ending.UNKNOWN)
        try:
            return LostCall(Ending.DONE, self._bound(name, await _after(self._hooks, name, {}, result)))
        except ToolFailed as error:
            return LostCall(Ending.DONE, f"the call was done, but {_words_of(error)}")

    async def _settle(self, tool: Tool, failure: Failure, *, may_have_run: bool) -> str | Failure:
        """Return the result or the failure of a lost call.

        Only a call that may have had effects is looked up. If the tool reports that it did not run, it may be retried.
        """
        definition = tool.definition
        if not (may_have_run and definition.has_effects):
            return failure
        lost = await self.find_outcome(definition.name, current_effect_id())
        match lost.ending:
            case Ending.DONE:
                return lost.content
            case Ending.NOT_RUN:
                return replace(failure, retryable=True)
            case _:
                message = f"the outcome of a call of {definition.name!r} is unknown, and it may have happened: "
                return failure_of(ErrorCode.TOOL_OUTCOME_UNKNOWN, message + failure.message)

    async def _attempt_all(
        self, run: Callable[[], Awaitable[str]], tool: Tool, deadline: Deadline
    ) -> tuple[str | Failure, int]:
        attempts = 0
        while True:
            try:
                outcome = await self._attempt(run, tool, deadline)
            except _NoPlace as refusal:
                return refusal.failure, attempts
            attempts += 1
            if isinstance(outcome, str) or not outcome.retryable or attempts > self._limits.max_retries:
                return outcome, attempts
            wait_s = Backoff(self._limits.backoff_s).wait_s(attempts)
            if deadline.has_passed(self._clock.monotonic_s() + wait_s):
                return outcome, attempts
            await asyncio.sleep(wait_s)

    async def _attempt(self, run: Callable[[], Awaitable[str]], tool: Tool, deadline: Deadline) -> str | Failure:
        """Run the tool once a place is free. The wait counts neither as tool time nor as silence. Raises _NoPlace."""
        if tool.places is None:
            return await self._run_once(run, tool, deadline)
        limit_s = deadline.limit(MAX_WAIT_S, self._clock.monotonic_s())
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(limit_s):
                    await stack.enter_async_context(tool.places.place(current_principal().sharing_tenant))
                return await self._run_once(run, tool, deadline)
        except TimeoutError:
            message = f"tool {tool.definition.name!r} was not run: no place was free within {limit_s:.3g} s"
            raise _NoPlace(ErrorCode.TOOL_TIMEOUT, message) from None
        except Overloaded as error:
            message = f"tool {tool.definition.name!r} is not available: {error}"
            raise _NoPlace(ErrorCode.TOOL_UNAVAILABLE, message) from None

    async def _run_once(self, run: Callable[[], Awaitable[str]], tool: Tool, deadline: Deadline) -> str | Failure:
        definition = tool.definition
        name, idempotent = definition.name, definition.idempotent
        timeout_s = definition.timeout_s or self._limits.default_timeout_s
        limit_s = deadline.limit(timeout_s, self._clock.monotonic_s())
        timer = asyncio.timeout(limit_s)
        try:
            async with timer:
                result = await run()
            self._guard.note_answer(tool)
            return self._bound(name, result)
        except (InvalidArguments, ToolDenied) as error:
            return _refusal_of(definition, error)
        except ToolUnavailable as error:
            self._guard.note_silence(tool)
            failure = _unavailable(definition, _words_of(error))
            return await self._settle(tool, failure, may_have_run=error.may_have_run)
        except ToolFailed as error:
            self._guard.note_answer(tool)
            retryable = idempotent and not error.is_final
            message = f"tool {name!r} failed: {_words_of(error)}"
            return failure_of(ErrorCode.TOOL_EXECUTION_FAILED, message, tool_is_idempotent=retryable)
        except Exception as error:  # noqa: BLE001 - a tool may raise anything
            if isinstance(error, TimeoutError) and timer.expired():
                if limit_s >= timeout_s:  # the tool's timeout expired, not the caller's deadline
                    self._guard.note_silence(tool)
                message = f"tool {name!r} did not finish within {limit_s:.3g} s"
                failure = failure_of(ErrorCode.TOOL_TIMEOUT, message, tool_is_idempotent=idempotent)
                return await self._settle(tool, failure, may_have_run=True)
            message = f"tool {name!r} failed: {report_bug(log, error, tool=name)}"
            return failure_of(ErrorCode.TOOL_EXECUTION_FAILED, message, tool_is_idempotent=idempotent)

    def _bound(self, name: str, content: str) -> str:
        encoded = content.encode(errors="replace")  # a lone surrogate cannot be sent
        limit = self._limits.max_result_bytes
        if len(encoded) > limit:
            log.warning("tool result too large", tool=name, result_bytes=len(encoded), max_result_bytes=limit)
            raise ToolFailed(f"its result has {len(encoded)} bytes, at most {limit} bytes are allowed: ask for less")
        return encoded.decode()


def _refusal_of(tool: ToolDefinition, error: InvalidArguments | ToolDenied) -> Failure:
    """Return the failure of a call that did not run."""
    if isinstance(error, InvalidArguments):
        return _refuse_arguments(tool.name, error)
    return failure_of(ErrorCode.TOOL_DENIED, f"tool {tool.name!r} was not run: {_words_of(error)}")


def _unavailable(tool: ToolDefinition, reason: str) -> Failure:
    message = f"tool {tool.name!r} is not available: {reason}"
    return failure_of(ErrorCode.TOOL_UNAVAILABLE, message, tool_is_idempotent=tool.idempotent)


def _words_of(error: ToolFailed | ToolUnavailable | ToolDenied) -> str:
    """Shorten the message of a tool, and replace lone surrogates, as in file names, because they cannot be sent."""
    return str(error)[:MAX_REASON_CHARS].encode(errors="replace").decode()


def _refuse_arguments(name: str, error: InvalidArguments) -> Failure:
    return failure_of(ErrorCode.TOOL_INVALID_ARGUMENTS, f"tool {name!r} was not run: {error}", details=error.details)


async def run_with_hooks(
    tool: Tool, arguments: Mapping[str, Any], checker: ArgumentChecker, hooks: Sequence[ToolHook], report: Report
) -> str:
    """Run a tool between its hooks, and return the result.

    Raises ToolDenied, InvalidArguments if a hook made the arguments invalid, and the errors of the tool and the hooks.
    """
    name = tool.definition.name
    for hook in hooks:
        changed = await _waited_for(hook.before(name, dict(arguments)))
        if changed is not None:
            arguments = checker.parse(dump_json(changed))
    try:
        result = await tool.run(arguments, report)
    except ToolFailed as error:
        words = await _after(hooks, name, arguments, str(error))
        raise ToolFailed(words, is_final=error.is_final) from None
    return await _after(hooks, name, arguments, result)


async def _after(hooks: Sequence[ToolHook], name: str, arguments: Mapping[str, Any], text: str) -> str:
    for hook in hooks:
        try:
            changed = await _waited_for(hook.after(name, dict(arguments), text))
        except ToolDenied as error:  # the tool has already run
            raise ToolFailed(f"its result is withheld: {error}") from None
        if changed is not None:
            text = str(changed)
    return text


async def _waited_for(result: Any) -> Any:
    if inspect.isawaitable(result):
        return await result
    return result
