"""Runs tool calls and emits their events.

Theory of operation. The id of a call's effect is stored before the call, and the tool receives it. If the end of a
call is lost (with the orchestrator, or with the connection), the call may have had its effect. If its tool is
idempotent, the call runs again. Otherwise the tool is asked for the outcome. If the tool does not know it, the outcome
is unknown, and the model reads that the call may have happened. So no effect happens twice or is lost silently.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial

import rfc8785

from pagantic_common.domain.errors import (
    ErrorCode,
    Failure,
    InvalidRequest,
    NotSent,
    PaganticError,
    Unavailable,
    Unreachable,
    failure_of,
)
from pagantic_common.domain.messages import Ending, LostCall, ToolCall, ToolDefinition, ToolProgress
from pagantic_common.domain.text.json_text import JsonTextError, parse_json
from pagantic_common.telemetry.scope import current_deadline, effect_scope, work_scope
from services.orchestrator.app.effects.guarding.calls import check_record, reads_results
from services.orchestrator.app.effects.scope import RunScope
from services.orchestrator.app.effects.tools.clearing import Authorization, MakeProvenance, authorize_call
from services.orchestrator.app.failures import failure_from
from services.orchestrator.app.services import CallTool, FindOutcome
from services.orchestrator.core.conversation.provenance import add_rounds, provenance_of
from services.orchestrator.core.execution import events
from services.orchestrator.core.execution.progress import (
    CallBegan,
    CallEnded,
    CallGivenUp,
    CallProgress,
    effect_id_of,
    unknown_outcome,
)
from services.orchestrator.core.model.request import Request
from services.orchestrator.core.model.response import ToolCallRecord
from services.orchestrator.core.tools.taint import Provenance
from services.orchestrator.core.turn.answering import RunTools, ToolsRan
from services.orchestrator.core.turn.run import Run

Tools = Mapping[str, ToolDefinition]
INTERRUPTED = "the orchestrator was interrupted during the call"


async def call_tools(run: Run, command: RunTools, scope: RunScope) -> ToolsRan:
    """Run the calls of a round concurrently within the limit, and return the records in call order.

    Ended calls do not run again.
    """
    tools = {tool.name: tool for tool in run.prepared.tools}
    before, provenance = scope.calls, cache(partial(_provenance_of, run, scope))
    try:
        with scope.branches.forked():
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(
                        _run_or_recall(
                            run,
                            call,
                            tools,
                            before,
                            scope,
                            position=f"{run.position}/{index}",
                            make_provenance=provenance,
                        )
                    )
                    for index, call in enumerate(command.calls)
                ]
    except ExceptionGroup as errors:  # The journal is unavailable; failures of calls are in their records.
        raise errors.exceptions[0] from None
    scope.cause = command.calls[-1].id
    return ToolsRan(tuple(task.result() for task in tasks))


async def _run_or_recall(
    run: Run,
    call: ToolCall,
    tools: Tools,
    before: CallProgress,
    scope: RunScope,
    *,
    position: str,
    make_provenance: MakeProvenance,
) -> ToolCallRecord:
    with scope.branches.branch():
        record = before.record_of(call.id)
        if record is not None:
            return record
        lost = before.lost(call.id, tools)
        if lost is not None and scope.recorded_call(call) is None:
            settled = await settle(call, lost.effect_id, INTERRUPTED, scope)
            if settled is not None:
                return await run_call(run.request, position, Authorization(call, recorded=settled), tools, scope)
        blocked = run.output.blocked_calls if run.output is not None else ()
        failure = next((blocked_call.failure for blocked_call in blocked if blocked_call.call_id == call.id), None)
        if failure is not None:
            return await run_call(run.request, position, Authorization(call, refusal=failure), tools, scope)
        cleared = await authorized_call(run.request, call, tools, make_provenance, scope)
        return await run_call(run.request, position, cleared, tools, scope)


def _provenance_of(run: Run, scope: RunScope) -> Provenance:
    provenance = scope.surroundings and scope.surroundings()
    if provenance is None:
        provenance = provenance_of(run.request, run.prepared)
    add_rounds(provenance, run.prepared, run.transcript)
    return provenance


async def authorized_call(
    request: Request, call: ToolCall, tools: Tools, make_provenance: MakeProvenance, scope: RunScope
) -> Authorization:
    """Authorize a call. A call of a tool that was not offered needs no authorization, because it will not run."""
    if call.name not in tools:
        return Authorization(call)
    return await authorize_call(request, call, tools[call.name], make_provenance, scope)


async def settle(call: ToolCall, effect_id: str, reason: str, scope: RunScope) -> ToolCallRecord | None:
    """Return the record of a call whose end was lost, with the reason, or None if the call did not run."""
    lost = LostCall(Ending.UNKNOWN)
    with suppress(PaganticError):
        lost = await scope.services.do(FindOutcome(call.name, effect_id))
    match lost.ending:
        case Ending.DONE:
            return ToolCallRecord(call.id, call.name, call.arguments_json, lost.content, False, None, 0.0)
        case Ending.NOT_RUN:
            return None
        case _:
            return _record_of(call, unknown_outcome(call.name, reason))


async def run_call(
    request: Request, position: str, cleared: Authorization, tools: Tools, scope: RunScope
) -> ToolCallRecord:
    """Run a call, emit its events and return its record, which contains any failure.

    `position` is the position of the call in its machine.
    """
    call = cleared.call
    async with scope.tool_slots:
        call_events = _CallEvents(call, position, scope, is_quiet=reads_results(request, scope))
        await call_events.begin()
        started_s = scope.clock.monotonic_s()
        try:
            if call.name not in tools:
                raise InvalidRequest(f"tool {call.name!r} was not offered", code=ErrorCode.TOOL_NOT_FOUND)
            cleared.check()
            record = cleared.recorded or await _execute(call, call_events, tools[call.name], scope)
            record = await check_record(replace(record, warnings=cleared.warnings), request, scope)
        except PaganticError as error:
            record = _failed(call, error, tools)
        except asyncio.CancelledError:
            await call_events.give_up(_given_up(call, scope.clock.monotonic_s() - started_s))
            raise
        record = replace(record, duration_s=scope.clock.monotonic_s() - started_s)
        await call_events.end(record)
        return record


async def _execute(call: ToolCall, call_events: _CallEvents, tool: ToolDefinition, scope: RunScope) -> ToolCallRecord:
    """Make a call. If the connection is lost during a call with effects, find its outcome."""
    effect_id = call_events.effect_id
    with work_scope(correlation=replace(scope.correlation(), caused_by=call.id)), effect_scope(effect_id):
        try:
            return await scope.services.do(CallTool(call), call_events.report)
        except Unreachable as error:
            if isinstance(error, NotSent) or not tool.has_effects:
                raise
            settled = await settle(call, effect_id, str(error), scope)
            if settled is None:
                raise
            return settled


class _CallEvents:
    """Emits the events of one call."""

    def __init__(self, call: ToolCall, position: str, scope: RunScope, *, is_quiet: bool) -> None:
        self._call = call
        self._is_quiet = is_quiet  # Guards do not read the messages of a running tool.
        self._recorder = scope.recorder
        self._path = scope.path
        self._cause = scope.cause
        self._args_hash = hash_arguments(call.arguments_json)
        self.effect_id = effect_id_of(scope.recorder.record.key, scope.path, position, self._args_hash)

    async def begin(self) -> None:
        """Record that the call is about to run, before the tool can have any effect."""
        call = self._call
        await self._recorder.emit(
            events.ToolStart(call.name, call.id, self._args_hash),
            entries=[CallBegan(call.id, call.name, self._path, self.effect_id)],
            is_durable=True,
            tool_call_id=call.id,
            caused_by=self._cause,
        )

    async def report(self, progress: ToolProgress) -> None:
        """Emit the progress of the call."""
        if self._is_quiet:
            progress = replace(progress, message="")
        await self._recorder.emit(events.ToolProgressed(progress), tool_call_id=self._call.id, caused_by=self._cause)

    async def end(self, record: ToolCallRecord) -> None:
        """Record that the call has ended, so that it will not run again."""
        await self._emit_end(record, [CallEnded(record, self._path)])

    async def give_up(self, record: ToolCallRecord) -> None:
        """Emit the end of a cancelled or timed-out call.

        No entry is stored, so that a resumed run knows that the tool may have run.
        """
        self._recorder.progress.add(CallGivenUp(record, self._path))
        await self._emit_end(record, [])

    async def _emit_end(self, record: ToolCallRecord, entries: list[CallEnded]) -> None:
        call = self._call
        self._recorder.set_last_step(call.id, record.failure)
        await self._recorder.emit(
            events.ToolEnd(call.name, call.id, self._args_hash, not record.is_error, record.error_code),
            entries=entries,
            is_durable=bool(entries),
            duration_s=record.duration_s,
            failure=record.failure,
            tool_call_id=call.id,
            caused_by=self._cause,
        )


def _failed(call: ToolCall, error: PaganticError, tools: Tools) -> ToolCallRecord:
    """Return the record of a call that the tools service could not make. After any error, the tool may have run."""
    failure = _failure_of_call(error)
    is_retryable = failure.retryable and call.name in tools and tools[call.name].idempotent
    return replace(_record_of(call, failure), is_retryable=is_retryable)


def _record_of(call: ToolCall, failure: Failure) -> ToolCallRecord:
    return ToolCallRecord(call.id, call.name, call.arguments_json, failure.message, True, failure.code, 0.0)


def _failure_of_call(error: PaganticError) -> Failure:
    failure = failure_from(error)
    if isinstance(error, Unavailable):
        return failure_of(ErrorCode.TOOL_UNAVAILABLE, failure.message, tool_is_idempotent=True)
    return failure


def _given_up(call: ToolCall, took_s: float) -> ToolCallRecord:
    """Return the record of a cancelled or timed-out call, whose tool may have run."""
    code = ErrorCode.CANCELLED_SIGNAL
    if current_deadline().has_passed(time.monotonic()):
        code = ErrorCode.CANCELLED_TIMEOUT
    text = f"the call of {call.name!r} was given up before it ended"
    return ToolCallRecord(call.id, call.name, call.arguments_json, text, True, code, took_s)


def hash_arguments(arguments_json: str) -> str:
    """Return the hex SHA-256 of the arguments as canonical JSON (RFC 8785), or of the raw text if it is not JSON."""
    try:
        data = rfc8785.dumps(parse_json(arguments_json or "{}"))
    except (JsonTextError, rfc8785.CanonicalizationError):
        data = arguments_json.encode()
    return hashlib.sha256(data).hexdigest()
