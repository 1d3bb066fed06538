"""Guards tool calls: checks arguments before a tool runs, and results before a model reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pagantic_common.domain.chunks import Chunk
from pagantic_common.domain.errors import ErrorCode, Failure, PermissionDenied
from pagantic_common.domain.messages import ToolCall
from pagantic_common.guards.plugin import GuardStage
from services.orchestrator.app.effects.guarding.checking import Checked, check_texts, guards_of
from services.orchestrator.app.effects.scope import RunScope
from services.orchestrator.core.guards.texts import GuardedText, gathered, map_json
from services.orchestrator.core.model.request import Request
from services.orchestrator.core.model.response import BlockedCall, InferenceOutput, ToolCallRecord
from services.orchestrator.core.model.response_warning import ResponseWarning

NO_ARGUMENTS = "{}"


@dataclass(frozen=True, slots=True)
class CheckedCalls:
    """An output with its permitted and blocked calls, and the guards' warnings."""

    output: InferenceOutput
    warnings: tuple[ResponseWarning, ...] = ()


async def check_calls(
    output: InferenceOutput, client_tools: frozenset[str], request: Request, scope: RunScope
) -> CheckedCalls:
    """Check the arguments of calls with the guards. Calls of the caller's tools are also checked as output.

    A blocked call loses its arguments. Raises PermissionDenied (GUARD_BLOCKED) if a call of a caller's tool is blocked.
    """
    calls: list[ToolCall] = []
    blocked: list[BlockedCall] = []
    warnings: tuple[ResponseWarning, ...] = ()
    for call in output.tool_calls:
        stages = [GuardStage.TOOL_ARGUMENTS]
        if call.name in client_tools:
            stages.append(GuardStage.OUTPUT)
        try:
            checked = await check_arguments(call, stages, request, scope)
        except PermissionDenied as error:
            if call.name in client_tools:
                raise
            blocked.append(BlockedCall(call.id, error.failure))
            calls.append(replace(call, arguments_json=NO_ARGUMENTS))
            continue
        calls.append(replace(call, arguments_json=checked.texts[0]))
        warnings += checked.warnings
    return CheckedCalls(replace(output, tool_calls=tuple(calls), blocked_calls=tuple(blocked)), warnings)


async def check_arguments(call: ToolCall, stages: Sequence[GuardStage], request: Request, scope: RunScope) -> Checked:
    """Check the arguments of a call with the guards of the given stages, and return them as one text."""
    arguments = call.arguments_json
    warnings: tuple[ResponseWarning, ...] = ()
    for stage in stages:
        if guards_of(stage, request, scope):
            checked = await _check_json(arguments, stage, request, scope, call.id)
            arguments, warnings = checked.texts[0], (*warnings, *checked.warnings)
    return Checked((arguments,), warnings)


async def _check_json(text: str, stage: GuardStage, request: Request, scope: RunScope, call_id: str) -> Checked:
    """Check the unescaped strings of a JSON document with the guards."""
    strings = gathered(lambda change: map_json(text, change, stage))
    checked = await check_texts(strings, stage, request, scope, tool_call_id=call_id)
    changed = iter(checked.texts)
    return replace(checked, texts=(map_json(text, lambda _: next(changed), stage),))


def reads_results(request: Request, scope: RunScope) -> bool:
    """Return whether a guard reads tool results."""
    return bool(guards_of(GuardStage.TOOL_RESULTS, request, scope))


async def check_record(record: ToolCallRecord, request: Request, scope: RunScope) -> ToolCallRecord:
    """Check the result of a call with the guards. A blocked result is withheld, and the call counts as failed."""
    if not reads_results(request, scope):
        return record
    text = GuardedText(record.result, GuardStage.TOOL_RESULTS, is_untrusted=True)
    try:
        checked = await check_texts([text], GuardStage.TOOL_RESULTS, request, scope, tool_call_id=record.id)
    except PermissionDenied as error:
        return withheld(record, error.failure)
    return replace(record, result=checked.texts[0], warnings=(*record.warnings, *checked.warnings))


def withheld(record: ToolCallRecord, failure: Failure) -> ToolCallRecord:
    """Return a record whose blocked result is replaced by the reason."""
    text = f"the result of {record.name!r} is withheld: {failure.message}"
    return replace(record, result=text, is_error=True, error_code=ErrorCode.GUARD_BLOCKED, is_retryable=False)


async def check_chunks(
    chunks: Sequence[Chunk], request: Request, scope: RunScope
) -> tuple[tuple[Chunk, ...], tuple[ResponseWarning, ...]]:
    """Check retrieved chunks with the guards of tool results, and drop the blocked chunks."""
    kept_chunks: list[Chunk] = []
    warnings: list[ResponseWarning] = []
    for chunk in chunks:
        text = GuardedText(chunk.content, GuardStage.TOOL_RESULTS, is_untrusted=True)
        try:
            checked = await check_texts([text], GuardStage.TOOL_RESULTS, request, scope)
        except PermissionDenied as error:
            warnings.append(ResponseWarning("guard_withheld", f"a chunk is left out: {error.failure.message}"))
            continue
        kept_chunks.append(replace(chunk, content=checked.texts[0]))
        warnings += checked.warnings
    return tuple(kept_chunks), tuple(warnings)
