"""Asks the model, and tells of each inference when it begins and when it ends."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import replace

from pagantic_common.domain.errors import ErrorCode, Failure, InvalidRequest, PaganticError, Unavailable
from pagantic_common.domain.text.calibration import LabelCalibration
from pagantic_common.telemetry.scope import work_scope
from services.orchestrator.app.effects.scope import RunScope
from services.orchestrator.app.effects.weighing import weigh_abstention
from services.orchestrator.app.failures import failure_from
from services.orchestrator.core.conversation.citations import CitedText
from services.orchestrator.core.execution import events
from services.orchestrator.core.execution.commands import Decide, Infer, Sample
from services.orchestrator.core.execution.events import InferencePurpose
from services.orchestrator.core.execution.inputs import Decided, Inferred
from services.orchestrator.core.execution.run import Run
from services.orchestrator.core.model.request import Request
from services.orchestrator.core.model.response import FinishReason, InferenceDelta, InferenceOutput, ToolCallPiece
from services.orchestrator.ports.services import QuestionScores


async def infer(
    run: Run, command: Infer, scope: RunScope, purpose: InferencePurpose = InferencePurpose.ANSWER
) -> Inferred:
    """Wait as long as the retry policy says, then ask the model, and stream its text where the command says so.

    An inference that is lost on the way is made once more, for it changes nothing; an event discards what it has said.
    The usage of the output includes that of the lost one.
    """
    request, inference = run.request, scope.inference
    wait_s = request.retry.wait_s(command.retry, random.random())  # noqa: S311 - no secret
    if wait_s > 0:
        await scope.clock.sleep(wait_s)
    output: InferenceOutput | None = None

    def end(failure: Failure | None) -> events.InferenceEnd:
        ended = inference.said or output or InferenceOutput("", FinishReason.ERROR)
        if failure is None and ended.finish_reason is FinishReason.ERROR:
            ended = replace(ended, finish_reason=FinishReason.CANCELLED)
        return end_of(ended)

    for may_restart in (True, False):
        telling = told(request, command, scope, end, purpose)
        async with _asked(request, command, scope, telling, may_restart=may_restart) as (name, pieces):
            text = CitedText() if request.output.citations is not None else None
            async for piece in pieces:
                output = await _take(_for_people(piece, text), command, scope, name) or output
        if output is not None:
            break
    output = output or InferenceOutput("", FinishReason.ERROR)
    not_in_sources, score_usage = await weigh_abstention(run, command, output, scope)
    return Inferred(inference.charge(replace(output, not_in_sources=not_in_sources)), score_usage)


def _for_people(piece: InferenceDelta | InferenceOutput, text: CitedText | None) -> InferenceDelta | InferenceOutput:
    """Return what an inference says; of an answer with citations the deltas have the text, and not its JSON."""
    if text is None or not isinstance(piece, InferenceDelta):
        return piece
    return replace(piece, content=text.feed(piece.content))


@asynccontextmanager
async def _asked(
    request: Request,
    command: Infer,
    scope: RunScope,
    telling: AbstractAsyncContextManager[str],
    *,
    may_restart: bool,
) -> AsyncIterator[tuple[str, AsyncIterator[InferenceDelta | InferenceOutput]]]:
    """Ask the model within what tells of it, and yield the inference's name and what it says.

    A lost inference is discarded instead of raised if it may restart.
    """
    scope.inference.give_up()  # one that a timeout stopped
    try:
        async with telling as name, aclosing(scope.services.inference.infer(command, request.hints)) as pieces:
            yield name, pieces
    except PaganticError as error:
        if not (may_restart and _is_lost(scope, error)):
            raise
        await _discard(scope, error)
    else:
        scope.cause = name


def _is_lost(scope: RunScope, error: PaganticError) -> bool:
    """Tell whether an inference that had begun was lost; one that has said something, only with its service."""
    said = scope.inference.said
    if said is None:
        return False
    if isinstance(error, Unavailable) and error.code is None:
        return True
    has_failed = isinstance(error, Unavailable) or error.code is ErrorCode.INFERENCE_ENGINE_ERROR
    return has_failed and not (said.content or said.reasoning or scope.inference.calls)


async def _discard(scope: RunScope, error: PaganticError) -> None:
    """Give a lost inference up, and tell the callers to discard what it has said."""
    has_streamed_calls = bool(scope.inference.calls)
    lost = scope.inference.give_up()
    if lost.content or lost.reasoning or has_streamed_calls:
        discarded = events.AttemptDiscarded(scope.recorder.attempt, str(error))
        await scope.recorder.emit(discarded, caused_by=scope.cause)


async def _take(
    piece: InferenceDelta | InferenceOutput, command: Infer, scope: RunScope, name: str
) -> InferenceOutput | None:
    """Keep what an inference has said in case it is stopped, and stream it; return the whole output, the last piece."""
    if isinstance(piece, InferenceOutput):
        scope.inference.said = None
        return piece
    await _stream(piece, command, scope, name)
    for call in piece.tool_calls:
        await _stream_call(call, command, scope, name)
    return None


async def _stream_call(piece: ToolCallPiece, command: Infer, scope: RunScope, name: str) -> None:
    """Stream a piece of a call, if the caller runs it."""
    calls = scope.inference.calls
    if piece.name in command.client_tools:
        calls[piece.index] = len(calls)
    if piece.index in calls:
        streamed = replace(piece, index=calls[piece.index])
        await scope.recorder.emit(events.ToolCallDelta(streamed), caused_by=name)


async def _stream(delta: InferenceDelta, command: Infer, scope: RunScope, name: str) -> None:
    said = scope.inference.said or InferenceOutput("", FinishReason.ERROR, model=delta.model, seed=delta.seed)
    if delta.continued_after_tokens is not None:
        await scope.recorder.emit(events.InferenceContinued(delta.continued_after_tokens), caused_by=name)
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


async def decide(run: Run, command: Decide, scope: RunScope) -> Decided:
    """Weigh all labels. Raises InvalidRequest (CONFIG_INVALID) for a calibration that does not fit the questions."""
    request = run.request
    calibration = _find_calibration(command.calibration, request, scope)
    scores = QuestionScores(())

    def end(failure: Failure | None) -> events.InferenceEnd:
        reason = FinishReason.STOP if failure is None else FinishReason.ERROR
        return end_of(InferenceOutput("", reason, usage=scores.usage, model=scores.model))

    async with told(request, command, scope, end, InferencePurpose.DECISION) as name:
        scores = await scope.services.inference.decide(command, request.hints)
    scope.cause = name
    if calibration is not None and calibration.model != scores.model:
        scope.inference.lost += scores.usage  # the failure takes it
        raise InvalidRequest(
            f"decisions.calibration {command.calibration!r} belongs to model {calibration.model!r}, and "
            f"{scores.model!r} answered: name that model in hints.model, or calibrate this one",
            code=ErrorCode.CONFIG_INVALID,
        )
    return Decided(scores.logprobs, scores.usage, scores.model, calibration)


def _find_calibration(name: str, request: Request, scope: RunScope) -> LabelCalibration | None:
    """Return the calibration that a request names, if it knows each of the labels."""
    if not name or request.decisions is None:
        return None
    known = scope.services.calibrations
    if name not in known:
        configured = ", ".join(sorted(known)) or "none"
        raise InvalidRequest(
            f"decisions.calibration: none is named {name!r}; configured: {configured}", code=ErrorCode.CONFIG_INVALID
        )
    for position, question in enumerate(request.decisions.questions):
        for option in question.options:
            if option.text not in known[name].maps:
                raise InvalidRequest(
                    f"decisions.calibration {name!r} does not know {option.text[:80]!r} of "
                    f"decisions.questions[{position}]: it was made of other labels; ask the question without it",
                    code=ErrorCode.CONFIG_INVALID,
                )
    return known[name]


@asynccontextmanager
async def told(
    request: Request,
    command: Infer | Sample | Decide,
    scope: RunScope,
    end: Callable[[Failure | None], events.InferenceEnd],
    purpose: InferencePurpose = InferencePurpose.ANSWER,
) -> AsyncIterator[str]:
    """Emit that an inference begins, and that it ended, however it did; what happens within is its work.

    Yields its name. `end` returns what its end tells, for the failure that ended it.
    """
    name = scope.next_inference()
    await scope.recorder.emit(_start_of(request, command, purpose), caused_by=scope.cause)
    started_s = scope.clock.monotonic_s()
    failure: Failure | None = None
    try:
        with work_scope(correlation=scope.correlation(name)):
            yield name
    except PaganticError as error:
        failure = failure_from(error)
        raise
    finally:
        took_s = scope.clock.monotonic_s() - started_s
        scope.recorder.set_last_step(name, failure)
        await scope.recorder.emit(end(failure), duration_s=took_s, failure=failure, caused_by=scope.cause)


def _start_of(request: Request, command: Infer | Sample | Decide, purpose: InferencePurpose) -> events.InferenceStart:
    if isinstance(command, Decide):
        return events.InferenceStart(
            len(command.messages), 0, schema_present=False, grammar_present=False, temperature=None, purpose=purpose
        )
    contract, is_constrained = request.output, bool(command.engine_text)
    return events.InferenceStart(
        message_count=len(command.messages),
        tool_defs_count=len(command.tools) if isinstance(command, Infer) else 0,
        schema_present=is_constrained and bool(contract.shown_schema_json),
        grammar_present=is_constrained and bool(contract.grammar or contract.grammar_name),
        temperature=request.hints.temperature if command.temperature is None else command.temperature,
        purpose=purpose,
    )


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
