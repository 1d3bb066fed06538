"""Asks the model, and tells of each inference when it begins and when it ends."""

from __future__ import annotations

import random
from contextlib import aclosing
from dataclasses import replace

from pagantic_common.domain.errors import ErrorCode, Failure, PaganticError, Unavailable
from pagantic_common.telemetry.scope import work_scope
from services.orchestrator.app.effects.scope import RunScope
from services.orchestrator.app.failures import failure_from
from services.orchestrator.core.execution import events
from services.orchestrator.core.execution.commands import Infer, Sample
from services.orchestrator.core.execution.events import InferencePurpose
from services.orchestrator.core.execution.inputs import Inferred
from services.orchestrator.core.execution.run import Run
from services.orchestrator.core.model.request import Hints, Request
from services.orchestrator.core.model.response import FinishReason, InferenceDelta, InferenceOutput


async def infer(run: Run, command: Infer, scope: RunScope) -> Inferred:
    """Wait as long as the retry policy says, then ask the model for the answer."""
    wait_s = run.request.retry.wait_s(command.retry, random.random())  # noqa: S311 - no secret
    if wait_s > 0:
        await scope.clock.sleep(wait_s)
    return Inferred(await ask_model(run.request, command, run.request.hints, scope))


async def ask_model(
    request: Request,
    command: Infer,
    hints: Hints,
    scope: RunScope,
    purpose: InferencePurpose = InferencePurpose.ANSWER,
) -> InferenceOutput:
    """Ask the model under these hints, and stream its text where the command says so.

    An inference that is lost on the way is made once more, for it changes nothing; an event discards what it has said.
    The usage of the output includes that of the lost one.
    """
    try:
        output = await _ask_once(request, command, hints, scope, purpose)
    except PaganticError as error:
        if not _may_restart(scope, error):
            raise
        lost = scope.inference.give_up()
        if lost.content or lost.reasoning:
            discarded = events.AttemptDiscarded(scope.recorder.attempt, str(error))
            await scope.recorder.emit(discarded, caused_by=scope.cause)
        output = await _ask_once(request, command, hints, scope, purpose)
    return scope.inference.charge(output)


def _may_restart(scope: RunScope, error: PaganticError) -> bool:
    """Tell whether an inference that had begun was lost; one that has said something, only with its service."""
    said = scope.inference.said
    if said is None:
        return False
    if isinstance(error, Unavailable) and error.code is None:
        return True
    has_failed = isinstance(error, Unavailable) or error.code is ErrorCode.INFERENCE_ENGINE_ERROR
    return has_failed and not said.content and not said.reasoning


async def _ask_once(
    request: Request, command: Infer, hints: Hints, scope: RunScope, purpose: InferencePurpose
) -> InferenceOutput:
    temperature = hints.temperature if command.temperature is None else command.temperature
    name = await tell_start(request, command, scope, temperature, tool_count=len(command.tools), purpose=purpose)
    started_s = scope.clock.monotonic_s()
    inference = scope.inference
    inference.give_up()  # one that a timeout stopped
    failure: Failure | None = None
    output = InferenceOutput("", FinishReason.ERROR)
    try:
        with work_scope(correlation=scope.correlation(request, name)):
            output = await _collect(command, hints, scope, name)
    except PaganticError as error:
        failure = failure_from(error)
        raise
    finally:
        ended = inference.said or output
        if failure is None and ended.finish_reason is FinishReason.ERROR:
            ended = replace(ended, finish_reason=FinishReason.CANCELLED)
        await tell_end(name, end_of(ended), started_s, failure, scope)
    scope.cause = name
    return output


async def _collect(command: Infer, hints: Hints, scope: RunScope, name: str) -> InferenceOutput:
    """Take what an inference says, and return its whole output."""
    output = InferenceOutput("", FinishReason.ERROR)
    async with aclosing(scope.services.inference.infer(command, hints)) as pieces:
        async for piece in pieces:
            if isinstance(piece, InferenceOutput):
                output = piece
                scope.inference.said = None
            else:
                await _take(piece, command, scope, name)
    return output


async def _take(delta: InferenceDelta, command: Infer, scope: RunScope, name: str) -> None:
    """Keep what an inference has said in case it is stopped, and stream it."""
    said = scope.inference.said or InferenceOutput("", FinishReason.ERROR, model=delta.model, seed=delta.seed)
    if not command.is_streamed:
        scope.inference.said = replace(said, usage=delta.usage)
        return
    scope.inference.said = replace(
        said, content=said.content + delta.content, reasoning=said.reasoning + delta.reasoning, usage=delta.usage
    )
    if delta.reasoning:
        await scope.recorder.emit(events.ReasoningDelta(delta.reasoning), caused_by=name)
    if delta.content:
        await scope.recorder.emit(events.ContentDelta(delta.content), caused_by=name)


async def tell_start(
    request: Request,
    command: Infer | Sample,
    scope: RunScope,
    temperature: float | None,
    *,
    tool_count: int = 0,
    purpose: InferencePurpose = InferencePurpose.ANSWER,
) -> str:
    """Emit that an inference begins, and return its name."""
    contract, is_constrained = request.output, bool(command.engine_text)
    start = events.InferenceStart(
        message_count=len(command.messages),
        tool_defs_count=tool_count,
        schema_present=is_constrained and bool(contract.schema_json),
        grammar_present=is_constrained and bool(contract.grammar or contract.grammar_name),
        temperature=temperature,
        purpose=purpose,
    )
    name = scope.next_inference()
    await scope.recorder.emit(start, caused_by=scope.cause)
    return name


async def tell_end(
    name: str, end: events.InferenceEnd, started_s: float, failure: Failure | None, scope: RunScope
) -> None:
    """Emit that an inference ended."""
    took_s = scope.clock.monotonic_s() - started_s
    scope.recorder.set_last_step(name, failure)
    await scope.recorder.emit(end, duration_s=took_s, failure=failure, caused_by=scope.cause)


def end_of(output: InferenceOutput) -> events.InferenceEnd:
    """Return what the end of an inference tells of its output."""
    return events.InferenceEnd(
        tokens_in=output.usage.prompt_tokens,
        tokens_out=output.usage.output_tokens,
        finish_reason=output.finish_reason,
        tool_call_count=len(output.tool_calls),
        model=output.model,
        seed=output.seed,
    )
