"""Runs an inference: streams its output, and the calls that the caller runs.

The pieces of a remote model's calls wait until the inference has ended and the arguments are checked, because a
streamed call cannot be taken back. Other calls stream as they arrive.
"""

from __future__ import annotations

import random
from dataclasses import replace

from pagantic_common.domain.errors import ErrorCategory, ErrorCode, Failure, InvalidRequest, PaganticError, Unavailable
from pagantic_common.domain.messages import ToolCall
from pagantic_common.domain.text.calibration import LabelCalibration, probability_of
from pagantic_common.domain.text.citations import ABSTENTION_JSON, AFFIRMATION_JSON
from pagantic_common.domain.usage import TokenUsage
from pagantic_common.domain.validation import Enforcement, StageOutcome
from services.orchestrator.app.effects.guarding.answering import OutputGuards
from services.orchestrator.app.effects.scope import RunScope, end_of, inference_events
from services.orchestrator.app.failures import failure_from
from services.orchestrator.app.services import Generate, Score, ScoreLabels, Validate
from services.orchestrator.core.conversation.grounding import CitedText
from services.orchestrator.core.execution import events
from services.orchestrator.core.execution.events import InferencePurpose
from services.orchestrator.core.model.contract import OutputContract
from services.orchestrator.core.model.request import Request
from services.orchestrator.core.model.response import (
    FinishReason,
    InferenceDelta,
    InferenceOutput,
    ToolCallPiece,
    WrongCall,
)
from services.orchestrator.core.model.response_warning import ResponseWarning
from services.orchestrator.core.turn.answering import Infer, Inferred, may_correct_calls
from services.orchestrator.core.turn.deciding import Decide, Decided
from services.orchestrator.core.turn.run import Run, has_answer_phase
from services.orchestrator.ports.services import QuestionScores

# The two possible prefixes of an answer with citations, up to the first different character.
_ABSTENTION_OR_CLAIMS = (ABSTENTION_JSON.removesuffix("}"), AFFIRMATION_JSON)


async def infer(
    run: Run, command: Infer, scope: RunScope, purpose: InferencePurpose = InferencePurpose.ANSWER
) -> Inferred:
    """Run the inference after the wait of the retry policy, and stream its text if the command requests it.

    A lost inference is restarted once, which is safe because an inference has no side effects. An event discards the
    text of the lost inference. Its usage is included in the usage of the output.
    """
    request, inference = run.request, scope.inference
    wait_s = request.retry.wait_s(command.retry, random.random())  # noqa: S311 - not a secret
    if wait_s > 0:
        await scope.clock.sleep(wait_s)
    output: InferenceOutput | None = None

    def end(failure: Failure | None) -> events.InferenceEnd:
        ended = inference.said or output or InferenceOutput("", FinishReason.ERROR)
        if failure is None and ended.finish_reason is FinishReason.ERROR:
            ended = replace(ended, finish_reason=FinishReason.CANCELLED)
        return end_of(ended)

    for may_restart in (True, False):
        inference.give_up()  # Clear an inference that a timeout stopped.
        try:
            async with inference_events(request, command, scope, end, purpose) as name:
                answer = _AnswerStream(run, command, scope, name, is_guarded=purpose is InferencePurpose.ANSWER)
                output = await answer.finish(await scope.services.do(Generate(request.hints, command), answer.take))
        except PaganticError as error:
            if not (may_restart and _is_lost(scope, error)):
                raise
            await _discard(scope, error)
        else:
            scope.cause = name
            break
    output = output or InferenceOutput("", FinishReason.ERROR)
    not_in_sources, score_usage = await _weigh_abstention(run, command, output, scope)
    charged = inference.charge(replace(output, not_in_sources=not_in_sources))
    return Inferred(charged, score_usage, answer.warnings, answer.wrong_calls)


class _AnswerStream:
    """Streams the guarded output of one inference, and keeps it in case the inference is stopped.

    Text of an answer with citations is streamed as plain text instead of JSON.
    """

    def __init__(self, run: Run, command: Infer, scope: RunScope, name: str, *, is_guarded: bool) -> None:
        self._is_streamed = command.is_streamed
        self._recorder = scope.recorder
        self._inference = scope.inference
        self._name = name
        self._cited = None if run.request.output.citations is None else CitedText()
        self._calls = CallerCalls(run, command, scope)
        guards = OutputGuards(run.request, command, scope)
        self._guards = guards if is_guarded and not guards.is_idle else None

    @property
    def warnings(self) -> tuple[ResponseWarning, ...]:
        """The warnings of the guards, and the warnings about calls that the caller runs."""
        return (self._guards.warnings if self._guards is not None else ()) + self._calls.warnings

    @property
    def wrong_calls(self) -> tuple[WrongCall, ...]:
        """The calls that the model should correct."""
        return self._calls.wrong

    async def take(self, delta: InferenceDelta) -> None:
        """Stream the next piece of the output, or let the guards hold it."""
        if self._cited is not None:
            delta = replace(delta, content=self._cited.feed(delta.content))
        if self._guards is None:
            await self._stream(delta)
        else:
            await self._guards.take(delta, self._stream)

    async def finish(self, output: InferenceOutput) -> InferenceOutput:
        """Stream the held output, and return the whole guarded output."""
        if self._guards is not None:
            output = await self._guards.finish(output, self._stream)
        await self._calls.finish(output, self._name)
        self._inference.said = None
        return output

    async def _stream(self, delta: InferenceDelta) -> None:
        emit = self._recorder.emit
        if delta.continued_after_tokens is not None:
            await emit(events.InferenceContinued(delta.continued_after_tokens), caused_by=self._name)
        self._inference.add(delta, keeps_text=self._is_streamed)
        if self._is_streamed and delta.reasoning:
            await emit(events.ReasoningDelta(delta.reasoning), caused_by=self._name)
        if self._is_streamed and delta.content:
            await emit(events.ContentDelta(delta.content), caused_by=self._name)
        await self._calls.take(delta, self._name)


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
    """Discard a lost inference. If part of its output was streamed, emit an event that discards this part."""
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
        scope.inference.lost += scores.usage  # The failure includes this usage.
        raise InvalidRequest(
            f"decisions.calibration {command.calibration!r} belongs to model {calibration.model!r}, and "
            f"{scores.model!r} answered: name that model in hints.model, or calibrate this one",
            code=ErrorCode.CONFIG_INVALID,
        )
    return Decided(scores.logprobs, scores.usage, scores.model, calibration)


def _find_calibration(name: str, request: Request, scope: RunScope) -> LabelCalibration | None:
    """Return the calibration that a request names. It must contain every label."""
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


class CallerCalls:
    """The calls of one inference that the caller runs.

    `wrong` contains the calls that the model should correct. `warnings` name calls sent with wrong arguments.
    """

    def __init__(self, run: Run, command: Infer, scope: RunScope) -> None:
        self._run = run
        self._command = command
        self._scope = scope
        self._is_remote = False
        self._waiting: list[ToolCallPiece] = []
        self.wrong: tuple[WrongCall, ...] = ()
        self.warnings: tuple[ResponseWarning, ...] = ()

    async def take(self, delta: InferenceDelta, name: str) -> None:
        """Stream the pieces of calls in a delta, or hold them. `name` is the name of the inference."""
        self._is_remote = self._is_remote or delta.is_remote
        for piece in delta.tool_calls:
            if self._is_remote:
                self._waiting.append(piece)
            else:
                await self._stream(piece, name)

    async def finish(self, output: InferenceOutput, name: str) -> None:
        """Check the calls of the whole output, and stream the held pieces unless the model should correct calls."""
        wrong = await self._wrong_calls(output)
        if wrong and not self._scope.inference.calls and may_correct_calls(self._run):
            self.wrong = wrong
            return
        for piece in self._waiting:
            await self._stream(piece, name)
        self.warnings = tuple(
            ResponseWarning("tool_arguments_invalid", f"call {call.call_id}: {call.message}") for call in wrong
        )

    async def _stream(self, piece: ToolCallPiece, name: str) -> None:
        calls = self._scope.inference.calls
        if piece.name in self._command.client_tools:
            calls[piece.index] = len(calls)
        if piece.index in calls:
            streamed = replace(piece, index=calls[piece.index])
            await self._scope.recorder.emit(events.ToolCallDelta(streamed), caused_by=name)

    async def _wrong_calls(self, output: InferenceOutput) -> tuple[WrongCall, ...]:
        if output.calls_held:
            return ()
        schemas = {
            tool.name: tool.parameters_json for tool in self._command.tools if tool.name in self._command.client_tools
        }
        checked = [
            WrongCall(call.id, message)
            for call in output.tool_calls
            if schemas.get(call.name) and (message := await self._violations_of(call, schemas[call.name]))
        ]
        return tuple(checked)

    async def _violations_of(self, call: ToolCall, schema_json: str) -> str:
        """Return the schema violations of a call's arguments, or an empty string if there are none.

        Arguments pass if they cannot be checked now, just like arguments of unknown tools.
        """
        contract = OutputContract(schema_json=schema_json, repair_allowed=False)
        judged = replace(self._run.request, output=contract, rules=(), semantic_intent="")
        try:
            enforcement = await self._scope.services.do(Validate(call.arguments_json or "{}", judged))
        except PaganticError:
            return ""
        return _reasons_of(enforcement)


def _reasons_of(enforcement: Enforcement) -> str:
    """Return the violations of arguments. Repaired arguments count as wrong, because the model wrote them wrong."""
    reasons = [violation.message for violation in enforcement.violations]
    for stage in enforcement.stages:
        if stage.outcome is StageOutcome.REPAIRED:
            reasons += stage.reasons
    if not reasons and not enforcement.valid and enforcement.failure is not None:
        reasons = [enforcement.failure.message]
    return "; ".join(reasons)


async def _weigh_abstention(
    run: Run, command: Infer, output: InferenceOutput, scope: RunScope
) -> tuple[float | None, TokenUsage]:
    """Return the probability of an abstention in place of claims, and the usage.

    The probability is None if it was not requested or if scoring failed, because a scoring error must not lose the
    answer. A request that is stopped during scoring keeps its streamed text, and its usage is charged.
    """
    if not _is_weighed(run, output):
        return None, TokenUsage()
    scope.inference.said = _as_streamed(output, command)
    try:
        scores = await scope.services.do(Score(run.request.hints, command, _ABSTENTION_OR_CLAIMS))
    except PaganticError as error:
        if failure_from(error).category is ErrorCategory.CANCELLATION:
            raise
        scope.inference.said = None
        return None, TokenUsage()
    scope.inference.said = None
    return probability_of(scores.log_odds), scores.usage


def _as_streamed(output: InferenceOutput, command: Infer) -> InferenceOutput:
    if not command.is_streamed:
        return replace(output, content="", reasoning="")
    return replace(output, content=CitedText().feed(output.content))


def _is_weighed(run: Run, output: InferenceOutput) -> bool:
    policy = run.request.output.citations
    if policy is None or not policy.may_abstain or not run.prepared.cited_chunks or output.tool_calls:
        return False
    return not (run.is_in_tool_phase and has_answer_phase(run))
