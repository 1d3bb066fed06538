"""Runs one tool call: checks its arguments, keeps its time limits, retries it, and makes every failure a value.

Does not know which tools there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagantic_common.domain.clock import Clock
from pagantic_common.domain.deadline import Deadline
from pagantic_common.domain.errors import ErrorCode, Failure, failure_of
from pagantic_common.domain.messages import ToolCall, ToolResult
from pagantic_common.telemetry.logging import get_logger, report_bug
from services.tools.core.arguments import InvalidArguments
from services.tools.core.failure import ToolFailed
from services.tools.core.registry import ToolRegistry
from services.tools.ports import Tool

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ExecutionLimits:
    """How long and how often; a tool's own timeout takes the place of `default_timeout_s`.

    The tool's timeout holds for each attempt, the caller's for all of them. The wait before retry k (from 1) is
    `backoff_s * 2**(k - 1)`.
    """

    default_timeout_s: float = 30.0
    max_retries: int = 2
    backoff_s: float = 0.05
    max_result_bytes: int = 65_536


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call gave; `attempts` is 0 when the tool did not run."""

    result: ToolResult
    failure: Failure | None
    duration_s: float
    attempts: int


class ToolExecutor:
    """Executes calls of registered tools."""

    def __init__(self, registry: ToolRegistry[Tool], clock: Clock, limits: ExecutionLimits) -> None:
        self._registry = registry
        self._clock = clock
        self._limits = limits

    async def execute(self, call: ToolCall, deadline: Deadline) -> Outcome:
        """Run a call and return what came of it; a failure is part of the outcome, never raised."""
        started_s = self._clock.monotonic_s()
        outcome, attempts = await self._attempt_all(call, deadline)
        duration_s = self._clock.monotonic_s() - started_s
        failure = outcome if isinstance(outcome, Failure) else None
        content = outcome if isinstance(outcome, str) else outcome.message
        log.info(
            "tool executed",
            tool=call.name[:64],
            tool_call_id=call.id,
            attempts=attempts,
            duration_ms=round(duration_s * 1000, 3),
            code=failure.code if failure else None,
        )
        result = ToolResult(call_id=call.id, name=call.name, content=content, is_error=failure is not None)
        return Outcome(result, failure, duration_s, attempts)

    async def _attempt_all(self, call: ToolCall, deadline: Deadline) -> tuple[str | Failure, int]:
        tool = self._registry.find(call.name)
        if tool is None:
            return failure_of(ErrorCode.TOOL_NOT_FOUND, self._registry.describe_unknown(call.name)), 0
        idempotent = tool.definition.idempotent
        if reason := tool.unavailable_reason:
            message = f"tool {call.name!r} is not available: {reason}"
            return failure_of(ErrorCode.TOOL_UNAVAILABLE, message, tool_is_idempotent=idempotent), 0
        try:
            arguments = self._registry.checker_of(call.name).parse(call.arguments_json)
        except InvalidArguments as error:
            return _refuse_arguments(call.name, error), 0
        most_attempts = 1 + self._limits.max_retries if idempotent else 1
        for attempt in range(1, most_attempts + 1):
            outcome = await self._attempt(tool, arguments, deadline)
            if isinstance(outcome, str) or not outcome.retryable or attempt == most_attempts:
                return outcome, attempt
            wait_s = self._limits.backoff_s * 2 ** (attempt - 1)
            left_s = deadline.remaining_s(self._clock.monotonic_s())
            if left_s is not None and left_s <= wait_s:
                return outcome, attempt
            await asyncio.sleep(wait_s)
        raise AssertionError("unreachable: the last attempt returns")

    async def _attempt(self, tool: Tool, arguments: Mapping[str, Any], deadline: Deadline) -> str | Failure:
        name, idempotent = tool.definition.name, tool.definition.idempotent
        timeout_s = tool.definition.timeout_s or self._limits.default_timeout_s
        left_s = deadline.remaining_s(self._clock.monotonic_s())
        limit_s = timeout_s if left_s is None else min(timeout_s, left_s)
        timer = asyncio.timeout(limit_s)
        try:
            async with timer:
                return self._bound(name, await tool.run(arguments))
        except ToolFailed as error:
            retryable = idempotent and not error.is_final
            message = f"tool {name!r} failed: {error}"
            return failure_of(ErrorCode.TOOL_EXECUTION_FAILED, message, tool_is_idempotent=retryable)
        except Exception as error:  # noqa: BLE001 - a tool may raise anything
            if isinstance(error, TimeoutError) and timer.expired():
                message = f"tool {name!r} did not finish within {limit_s:.3g} s"
                return failure_of(ErrorCode.TOOL_TIMEOUT, message, tool_is_idempotent=idempotent)
            message = f"tool {name!r} failed: {report_bug(log, error, tool=name)}"
            return failure_of(ErrorCode.TOOL_EXECUTION_FAILED, message, tool_is_idempotent=idempotent)

    def _bound(self, name: str, content: str) -> str:
        encoded = content.encode(errors="replace")  # a lone surrogate cannot be sent
        limit = self._limits.max_result_bytes
        if len(encoded) > limit:
            log.warning("tool result too large", tool=name, result_bytes=len(encoded), max_result_bytes=limit)
            raise ToolFailed(f"its result has {len(encoded)} bytes, at most {limit} bytes are allowed: ask for less")
        return encoded.decode()


def _refuse_arguments(name: str, error: InvalidArguments) -> Failure:
    violations = [{"argument": found.argument, "problem": found.problem} for found in error.violations]
    message = f"tool {name!r} was not run: {error}"
    return failure_of(ErrorCode.TOOL_INVALID_ARGUMENTS, message, details={"violations": violations})
