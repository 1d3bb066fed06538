"""Runs an inference and streams its output."""

from __future__ import annotations

import random
from dataclasses import replace

from pagantic_common.domain.errors import ErrorCode, Failure, InvalidRequest, PaganticError, Unavailable
from pagantic_common.domain.text.calibration import LabelCalibration
from services.orchestrator.app.effects.guarding.answering import OutputGuards
from services.orchestrator.app.effects.inference.caller_calls import CallerCalls
from services.orchestrator.app.effects.inference.weighing import weigh_abstention
from services.orchestrator.app.effects.inference_events import end_of, inference_events
from services.orchestrator.app.effects.scope import RunScope
from services.orchestrator.app.services import Generate, ScoreLabels
from services.orchestrator.core.conversation.citations import CitedText
from services.orchestrator.core.execution import events
from services.orchestrator.core.execution.events import InferencePurpose
from services.orchestrator.core.model.request import Request
from services.orchestrator.core.model.response import FinishReason, InferenceDelta, InferenceOutput
from services.orchestrator.core.turn.answering import Infer, Inferred
from services.orchestrator.core.turn.deciding import Decide, Decided
from services.orchestrator.core.turn.run import Run
from services.orchestrator.ports.services import QuestionScores


async def infer(
    run: Run, command: Infer, scope: RunScope, purpose: InferencePurpose = InferencePurpose.ANSWER
) -> Inferred:
    """Run the inference after the wait of the retry policy, and stream its text if the command asks for it.

    A lost inference is restarted once, which is safe because an inference has no side effects. An event discards the
    text of the lost inference, and the usage of the output includes the usage of that inference.
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
        inference.give_up()  # clears an inference that a timeout stopped
        guards, calls = OutputGuards(request, command, scope), CallerCalls(run, command, scope)
        is_guarded = purpose is InferencePurpose.ANSWER and not guards.is_idle
        try:
            async with inference_events(request, command, scope, end, purpose) as name:
                output = await _generate(request, command, scope, name, calls, guards=guards if is_guarded else None)
        except PaganticError as error:
            if not (may_restart and _is_lost(scope, error)):
                raise
            await _discard(scope, error)
        else:
            scope.cause = name
            break
    output = output or InferenceOutput("", FinishReason.ERROR)
    not_in_sources, score_usage = await weigh_abstention(run, command, output, scope)
    answered = inference.charge(replace(output, not_in_sources=not_in_sources))
    return Inferred(answered, score_usage, guards.warnings + calls.warnings, calls.wrong)


async def _generate(
    request: Request, command: Infer, scope: RunScope, name: str, calls: CallerCalls, *, guards: OutputGuards | None
) -> InferenceOutput:
    """Have the model generate its output, and stream the output as the guards leave it.

    Text of an answer with citations is streamed as plain text instead of JSON. What was streamed is kept in case the
    inference is stopped.
    """
    cited = None if request.output.citations is None else CitedText()

    async def stream(delta: InferenceDelta) -> None:
        if delta.continued_after_tokens is not None:
            await scope.recorder.emit(events.InferenceContinued(delta.continued_after_tokens), caused_by=name)
        scope.inference.add(delta, keeps_text=command.is_streamed)
        if command.is_streamed and delta.reasoning:
            await scope.recorder.emit(events.ReasoningDelta(delta.reasoning), caused_by=name)
        if command.is_streamed and delta.content:
            await scope.recorder.emit(events.ContentDelta(delta.content), caused_by=name)
        await calls.take(delta, name)

    async def take(delta: InferenceDelta) -> None:
        if cited is not None:
            delta = replace(delta, content=cited.feed(delta.content))
        await (stream(delta) if guards is None else guards.take(delta, stream))

    output = await scope.services.do(Generate(request.hints, command), take)
    if guards is not None:
        output = await guards.finish(output, stream)
    await calls.finish(output, name)
    scope.inference.said = None
    return output


def _is_lost(scope: RunScope, error: PaganticError) -> bool:
    """Return whether a running inference was lost. An engine error counts as a loss only before the first output."""
    output = scope.inference.said
    if output is None:
        return False
    if isinstance(error, Unavailable) and error.code is None:
        return True
    has_failed = isinstance(error, Unavailable) or error.code is ErrorCode.INFERENCE_ENGINE_ERROR
    return has_failed and not (output.content or output.reasoning or scope.inference.calls)


async def _discard(scope: RunScope, error: PaganticError) -> None:
    """Discard a lost inference. If some of its output was streamed, emit an event that discards that output."""
    has_streamed_calls = bool(scope.inference.calls)
    lost = scope.inference.give_up()
    if lost.content or lost.reasoning or has_streamed_calls:
        discarded = events.AttemptDiscarded(scope.recorder.attempt, str(error))
        await scope.recorder.emit(discarded, caused_by=scope.cause)


async def decide(run: Run, command: Decide, scope: RunScope) -> Decided:
    """Score all labels. Raises InvalidRequest (CONFIG_INVALID) if a calibration does not fit the questions."""
    request = run.request
    calibration = _find_calibration(command.calibration, request, scope)
    scores = QuestionScores(())

    def end(failure: Failure | None) -> events.InferenceEnd:
        reason = FinishReason.STOP if failure is None else FinishReason.ERROR
        return end_of(InferenceOutput("", reason, usage=scores.usage, model=scores.model))

    async with inference_events(request, command, scope, end, InferencePurpose.DECISION) as name:
        scores = await scope.services.do(ScoreLabels(request.hints, command))
    scope.cause = name
    if calibration is not None and calibration.model != scores.model:
        scope.inference.lost += scores.usage  # the failure includes this usage
        raise InvalidRequest(
            f"decisions.calibration {command.calibration!r} belongs to model {calibration.model!r}, and "
            f"{scores.model!r} answered: name that model in hints.model, or calibrate this one",
            code=ErrorCode.CONFIG_INVALID,
        )
    return Decided(scores.logprobs, scores.usage, scores.model, calibration)


def _find_calibration(name: str, request: Request, scope: RunScope) -> LabelCalibration | None:
    """Return the calibration that a request names, which must know each of the labels."""
    if not name or request.decisions is None:
        return None
    calibrations = scope.services.calibrations
    if name not in calibrations:
        configured = ", ".join(sorted(calibrations)) or "none"
        raise InvalidRequest(
            f"decisions.calibration: none is named {name!r}; configured: {configured}", code=ErrorCode.CONFIG_INVALID
        )
    for position, question in enumerate(request.decisions.questions):
        for option in question.options:
            if option.text not in calibrations[name].maps:
                raise InvalidRequest(
                    f"decisions.calibration {name!r} does not know {option.text[:80]!r} of "
                    f"decisions.questions[{position}]: it was made of other labels; ask the question without it",
                    code=ErrorCode.CONFIG_INVALID,
                )
    return calibrations[name]
