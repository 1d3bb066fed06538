"""Runs tool calls and tells of each; none runs twice, also when an orchestrator died in the middle of one."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import rfc8785

from pagantic_common.domain.clock import Clock
from pagantic_common.domain.errors import (
    ErrorCode,
    InvalidRequest,
    PaganticError,
    PreconditionFailed,
    Unavailable,
    failure_of,
)
from pagantic_common.domain.json_text import JsonTextError, parse_json
from pagantic_common.domain.messages import ToolCall, ToolDefinition
from pagantic_common.telemetry.scope import current_deadline, work_scope
from services.orchestrator.app.failures import failure_from
from services.orchestrator.app.inferences import Inferences
from services.orchestrator.app.recorder import Recorder
from services.orchestrator.core import events
from services.orchestrator.core.replay import CallBegan, CallEnded, Progress, lost_call_message
from services.orchestrator.core.request import Request
from services.orchestrator.core.response import ToolCallRecord
from services.orchestrator.ports.services import ToolsPort


class ToolCalls:
    """The calls of one run, or of one step of a plan; `records` has those that ended, in the order of their ends."""

    def __init__(
        self,
        tools: ToolsPort,
        clock: Clock,
        recorder: Recorder,
        inferences: Inferences,
        *,
        step: str,
        slots: asyncio.Semaphore,
    ) -> None:
        self._tools = tools
        self._clock = clock
        self._recorder = recorder
        self._inferences = inferences
        self._step = step
        self._slots = slots
        self.records: list[ToolCallRecord] = []
        self.started_count = 0

    async def run_all(
        self, request: Request, calls: Sequence[ToolCall], offered: Sequence[ToolDefinition], progress: Progress
    ) -> tuple[ToolCallRecord, ...]:
        """Run the calls of one turn, as many at the same time as may, but for those that had ended; in call order."""
        tools = {tool.name: tool for tool in offered}
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._run_or_recall(request, call, tools, progress)) for call in calls]
        self._inferences.cause = calls[-1].id
        return tuple(task.result() for task in tasks)

    async def _run_or_recall(
        self, request: Request, call: ToolCall, tools: Mapping[str, ToolDefinition], progress: Progress
    ) -> ToolCallRecord:
        if (record := progress.record_of(call.id)) is not None:
            self.records.append(record)
            return record
        return await self.run(request, call, tools, is_lost=progress.is_lost(call.id, tools))

    async def run(
        self, request: Request, call: ToolCall, tools: Mapping[str, ToolDefinition], *, is_lost: bool = False
    ) -> ToolCallRecord:
        """Run a call and tell of it; its failure is in the record. A lost one may have run, and is not run again."""
        async with self._slots:
            return await self._run(request, call, tools, is_lost=is_lost)

    async def _run(
        self, request: Request, call: ToolCall, tools: Mapping[str, ToolDefinition], *, is_lost: bool
    ) -> ToolCallRecord:
        cause, args_hash = self._inferences.cause, hash_arguments(call.arguments_json)
        await self._recorder.emit(
            events.ToolStart(call.name, call.id, args_hash),
            entries=[CallBegan(call.id, call.name, self._step)],
            is_durable=True,  # before anything happens in the world
            tool_call_id=call.id,
            caused_by=cause,
        )
        started_s = self._clock.monotonic_s()
        try:
            if is_lost:
                raise PreconditionFailed(lost_call_message(call.name), code=ErrorCode.TOOL_EXECUTION_FAILED)
            if call.name not in tools:
                raise InvalidRequest(f"tool {call.name!r} was not offered", code=ErrorCode.TOOL_NOT_FOUND)
            with work_scope(correlation=self._inferences.correlation(request, "", call.id)):
                self.started_count += 1
                record = await self._tools.execute(call)
        except PaganticError as error:
            failed = failure_from(error)
            if isinstance(error, Unavailable):
                failed = failure_of(ErrorCode.TOOL_UNAVAILABLE, failed.message, tool_is_idempotent=True)
            record = ToolCallRecord(
                call.id,
                call.name,
                call.arguments_json,
                result=failed.message,
                is_error=True,
                error_code=failed.code,
                duration_s=self._clock.monotonic_s() - started_s,
                # It may have run, whatever the error says.
                is_retryable=failed.retryable and call.name in tools and tools[call.name].idempotent,
            )
        except asyncio.CancelledError:
            record = _given_up(call, self._clock.monotonic_s() - started_s)
            await self._end(call, args_hash, cause, record, is_given_up=True)
            raise
        took_s = self._clock.monotonic_s() - started_s
        record = replace(record, duration_s=took_s)
        await self._end(call, args_hash, cause, record)
        return record

    async def _end(
        self, call: ToolCall, args_hash: str, cause: str, record: ToolCallRecord, *, is_given_up: bool = False
    ) -> None:
        self.records.append(record)
        self._recorder.set_last_step(call.id, record.failure)
        await self._recorder.emit(
            events.ToolEnd(call.name, call.id, args_hash, not record.is_error, record.error_code),
            # What was given up has no end that it could be taken up from: it may have run.
            entries=[] if is_given_up else [CallEnded(record, self._step)],
            is_durable=not is_given_up,  # what has ended will not run again
            duration_s=record.duration_s,
            failure=record.failure,
            tool_call_id=call.id,
            caused_by=cause,
        )


def _given_up(call: ToolCall, took_s: float) -> ToolCallRecord:
    """Return the record of a call that was cancelled, or whose time was up: it may have run."""
    text = f"the call of {call.name!r} was given up before it ended"
    is_late = current_deadline().has_passed(time.monotonic())
    code = ErrorCode.CANCELLED_TIMEOUT if is_late else ErrorCode.CANCELLED_SIGNAL
    return ToolCallRecord(call.id, call.name, call.arguments_json, text, True, code, took_s)


def hash_arguments(arguments_json: str) -> str:
    """SHA-256 of the arguments as canonical JSON (RFC 8785), hex; of the text itself when it is not JSON."""
    try:
        data = rfc8785.dumps(parse_json(arguments_json or "{}"))
    except (JsonTextError, rfc8785.CanonicalizationError):
        data = arguments_json.encode()
    return hashlib.sha256(data).hexdigest()
