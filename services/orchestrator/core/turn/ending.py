"""Moves a run to its next state, ends it with an answer or a failure, and builds the response.

The response has the validation report, the citations, the confidence, and a warning if a limit or a stop text cut the
answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from pagantic_common.domain.errors import ErrorCategory, ErrorCode, Failure, failure_of
from pagantic_common.domain.messages import Message, Role
from pagantic_common.domain.text.citations import ABSTENTION_JSON, NOT_IN_SOURCES, read_claims, text_of
from pagantic_common.domain.usage import TokenUsage
from pagantic_common.domain.validation import Enforcement, Guarantee, Stage, StageOutcome, Violation
from services.orchestrator.core.conversation.grounding import CitedText, citations_of, is_quoted, retrieval_confidence
from services.orchestrator.core.conversation.prompt import last_user_text
from services.orchestrator.core.kernel.command import Answer, Command
from services.orchestrator.core.model.plan import Plan, StepKind, StepResult, ValueKind, dependencies_of
from services.orchestrator.core.model.request import Mode, Request
from services.orchestrator.core.model.response import (
    ConfidenceSource,
    FinishReason,
    InferenceOutput,
    Response,
    ToolCallRecord,
    ValidationReport,
)
from services.orchestrator.core.model.response_warning import ResponseWarning
from services.orchestrator.core.model.voting import Count
from services.orchestrator.core.turn.replicas import Replica, candidates_of, judge_usage_of
from services.orchestrator.core.turn.run import Outcome, Run, State, Transition, check_transition, has_answer_phase

RAISED_LIMIT_FACTOR = 4
_SPARE_TOKENS = 8  # margin for small differences in the tokens of a retry's prompt

TRUNCATED, TOO_LARGE = "output_truncated", "output_too_large"
CUT_CODES = frozenset({TRUNCATED, TOO_LARGE})  # warning codes of a truncated answer


@dataclass(frozen=True, slots=True)
class Finish(Command):
    """The command to deliver the response, and to add the messages of `turn` to the conversation.

    `turn` is empty if the turn failed. The command has no answer.
    """

    response: Response
    turn: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class Failed(Answer):
    """The failure of the outstanding command, or the cancellation of the execution. It can answer any command.

    The other fields are partial results: `records` of an unfinished turn, `results` of an unfinished plan, `replicas`
    and `usage` of an unfinished vote, and the `output` of a stopped inference.
    """

    kind: ClassVar[str] = "Failed"

    failure: Failure
    records: tuple[ToolCallRecord, ...] = ()
    results: tuple[StepResult, ...] = ()
    replicas: tuple[Replica, ...] = ()
    usage: TokenUsage = TokenUsage()
    output: InferenceOutput | None = None

    @property
    def total_usage(self) -> TokenUsage:
        """The tokens of the unfinished work."""
        usage = sum((result.usage for result in self.results), self.usage) + judge_usage_of(self.replicas)
        return usage if self.output is None else usage + self.output.usage


def after_failure(run: Run, failed: Failed) -> Outcome:
    """End a run with the failure of its command, and keep the partial results."""
    run = replace(
        run,
        records=(*run.records, *failed.records),
        results=(*run.results, *failed.results),
        replicas=run.replicas or failed.replicas,
    )
    output = failed.output
    if output is not None:
        run = replace(run, model=output.model or run.model)
        if output.content or output.reasoning:
            run = replace(run, streamed=output)
    return fail(run, failed.failure)


def move(run: Run, target: State, reason: str, command: Command | None = None) -> Outcome:
    """Make a transition, and set the next command. A move without a command must be followed by another move.

    Raises IllegalTransitionError if the transition is not in the lifecycle's table.
    """
    check_transition(run.state, target)
    transition = Transition(run.state, target, run.attempt, reason)
    return Outcome(replace(run, state=target, outstanding=command), (transition,))


def ask(run: Run, command: Command) -> Outcome:
    """Set the next command without a transition."""
    return Outcome(replace(run, outstanding=command))


def complete(run: Run, reason: str) -> Outcome:
    """End a run with its answer, and add the turn to a stored conversation."""
    response = _with_confidence(run, _with_finish_reason(run, _response(run)))
    return move(run, State.COMPLETE, reason, Finish(response, _turn(run, response)))


def _with_finish_reason(run: Run, response: Response) -> Response:
    """Set the finish reason of a vote or a plan, which has no single output."""
    if response.finish_reason is not None or not run.model:
        return response
    reason = FinishReason.STOP
    final = final_result(run.plan, run.results)
    if final is not None and any(warning.code in CUT_CODES for warning in final.warnings):
        reason = FinishReason.LENGTH
    return replace(response, finish_reason=reason)


def _with_confidence(run: Run, response: Response) -> Response:
    """Set the confidence to the retrieved context's confidence, unless it is already set."""
    if response.confidence is not None:
        return response
    confidence = retrieval_confidence_of(run)
    if confidence is None:
        return response
    return replace(response, confidence=confidence, confidence_source=ConfidenceSource.RETRIEVAL)


def abstain(run: Run, reason: str) -> Outcome:
    """End a run with an abstention, which does not come from a model and is not validated."""
    response = replace(_response(run), finish_reason=FinishReason.STOP)
    response = _with_confidence(run, with_abstention(response))
    return move(run, State.COMPLETE, reason, Finish(response, _turn(run, response)))


def fail(run: Run, failure: Failure) -> Outcome:
    """End a run with a failure.

    If the run was cancelled, the conversation keeps the text that was streamed so far, marked as cut.
    """
    if run.last_failure is not None and run.last_failure != failure:
        failure = failure.because_of(run.last_failure)
    run = replace(run, last_failure=failure, count=run.count and replace(run.count, agreement=0.0))
    response = replace(_response(run), failure=failure)
    if failure.category is ErrorCategory.CANCELLATION:
        return _cancel(run, failure, response)
    return move(run, State.ERROR, _reason_of(failure), Finish(response))


def _cancel(run: Run, failure: Failure, response: Response) -> Outcome:
    response = replace(response, finish_reason=FinishReason.CANCELLED)
    turn: tuple[Message, ...] = ()
    if run.streamed is not None and run.streamed.content:
        turn = _turn(run, response, is_cut=True)
    return move(run, State.CANCELLED, _reason_of(failure), Finish(response, turn))


def _reason_of(failure: Failure) -> str:
    if failure.code is None:
        return "internal error"
    return failure.code.value


def _turn(run: Run, response: Response, *, is_cut: bool = False) -> tuple[Message, ...]:
    """Return the messages that are added to a stored conversation."""
    if not run.request.is_turn:
        return ()
    new_messages = [message for message in run.request.messages if message.role is not Role.SYSTEM]
    if run.handed_over:  # The turn already contains the text sent with the calls.
        return (*new_messages, *run.turn)
    answer = Message(Role.ASSISTANT, content=response.content, reasoning=response.reasoning, cut=is_cut)
    return (*new_messages, *run.turn, answer)


def _response(run: Run) -> Response:
    output = run.streamed or run.best_output or run.output
    enforcement = run.best
    if run.handed_over:
        output = run.output
    if run.streamed is not None or run.handed_over:  # Deliver the latest output, not the best earlier attempt.
        enforcement = None
    confidence, source = confidence_of(run.request, enforcement, run.count)
    response = Response(
        request_id=run.request.request_id,
        session_id=run.request.session_id,
        content=content_of(run.plan, run.results),
        earlier_content=_earlier_content(run),
        tool_calls_made=run.records,
        confidence=confidence,
        confidence_source=source,
        candidates=candidates_of(run.replicas, run.count),
        step_results=run.results,
        usage=run.usage,
        warnings=tuple(dict.fromkeys([*run.prepared.warnings, *_warnings(run), *_guard_warnings(run)])),
        seed=run.seed,
        plan=run.plan,
        tool_calls=run.handed_over,
        variant=run.request.variant,
    )
    if output is not None:
        response = replace(
            response,
            content=output.content,
            matched_stop=output.matched_stop,
            finish_reason=FinishReason.TOOL if run.handed_over else output.finish_reason,
            reasoning=output.reasoning,
            logprobs=output.logprobs,
            seed=output.seed,
            not_in_sources=output.not_in_sources,
            decisions=output.decisions,
        )
    if enforcement is None:
        return response
    return _with_enforcement(run, response, enforcement)


def _earlier_content(run: Run) -> str:
    """Return the texts streamed with calls of the deployment's tools, before the content of the response."""
    if has_answer_phase(run):
        return ""
    texts = [message.content for message in run.turn if message.role is Role.ASSISTANT]
    if run.handed_over:  # The last text accompanies the calls of the caller's tools, and is the content.
        del texts[-1:]
    return "".join(texts)


def _with_enforcement(run: Run, response: Response, enforcement: Enforcement) -> Response:
    """Return a response with the enforced output and its report. A cut output stays as it was streamed."""
    report = report_of(run.request, enforcement, run.repair_attempts, is_cut=run.cut is not None)
    if run.count is not None and len(run.replicas) < run.request.voting.n:
        report = replace(report, warnings=(*report.warnings, _early_warning(run)))
    response = replace(response, structured_output_json=enforcement.structured_output_json, validation=report)
    if run.cut is None:
        response = replace(response, content=enforcement.output)
    if run.request.output.citations is None:
        return response
    if not enforcement.valid or run.cut is not None:
        return with_cited_text(response)
    return with_citations(run, response, report.guarantee)


def _warnings(run: Run) -> tuple[ResponseWarning, ...]:
    if run.plan is not None:
        return tuple(warning for result in run.results for warning in result.warnings)
    if run.handed_over:  # Earlier attempts do not count.
        return _truncation_warnings(run)
    if run.cut is not None:
        return (truncation_warning(run.cut),)
    if run.best is not None and not run.best.valid and not run.request.output.strict_validation:
        return (
            ResponseWarning("output_invalid", "the output does not satisfy its contract: strict_validation is off"),
        )
    return _truncation_warnings(run)


def _guard_warnings(run: Run) -> tuple[ResponseWarning, ...]:
    """Return the guards' warnings about the texts of the run, including the texts of discarded attempts."""
    return (*run.warnings, *(warning for record in run.records for warning in record.warnings))


def _truncation_warnings(run: Run) -> tuple[ResponseWarning, ...]:
    if run.output is None or run.output.finish_reason is not FinishReason.LENGTH:
        return ()
    return (truncation_warning(truncation_of(run.request, run.output, run.max_tokens)),)


def _early_warning(run: Run) -> str:
    n = run.request.voting.n
    return f"decided after {len(run.replicas)} of {n} replicas: confidence is a lower bound"


_JSON_BEGINNING: Final = '{"in_sources"'


def report_of(
    request: Request, enforcement: Enforcement, repair_attempts: int, *, is_cut: bool = False
) -> ValidationReport:
    """Return the report on the delivered attempt.

    An attempt that was cut off at a limit has the guarantee PARTIAL, even if a repair completed it.
    """
    outcomes = [stage.outcome for stage in enforcement.stages]
    guarantee = enforcement.guarantee
    warnings = enforcement.warnings
    remaining: tuple[Violation, ...] = ()
    if not enforcement.valid:
        remaining = enforcement.violations
        if request.output.shown_schema_json:
            guarantee = Guarantee.PARTIAL
        warnings = (*warnings, "the output does not satisfy its contract")
    elif is_cut:
        guarantee = Guarantee.PARTIAL
        warnings = (*warnings, "the output was cut, and a repair alone closes it")
    return ValidationReport(
        checks_passed=outcomes.count(StageOutcome.PASSED) + outcomes.count(StageOutcome.REPAIRED),
        checks_failed=outcomes.count(StageOutcome.FAILED),
        repair_attempts=repair_attempts,
        remaining_violations=remaining,
        guarantee=guarantee,
        warnings=warnings,
        stages=enforcement.stages,
    )


def with_citations(run: Run, response: Response, guarantee: Guarantee) -> Response:
    """Return a response with the citations and the readable text of its answer's JSON.

    It has no citations if any chunk does not support its claim, which can happen in an unvalidated answer.
    """
    claims, chunks = read_claims(response.content), run.prepared.cited_chunks
    if claims is None or not all(is_quoted(claim, chunks) for claim in claims):
        return with_cited_text(response)
    return replace(response, content=text_of(claims), citations=citations_of(claims, chunks, guarantee))


def with_cited_text(response: Response) -> Response:
    """Return a response with the readable text of a truncated or invalid answer, as it was streamed.

    The text may be empty. Any content except an answer's JSON is unchanged.
    """
    content = response.content
    text = CitedText().feed(content)
    if not text and not content.startswith(_JSON_BEGINNING) and not _JSON_BEGINNING.startswith(content):
        return response
    return replace(response, content=text)


def with_abstention(response: Response) -> Response:
    """Return a response that states that the sources do not contain the answer."""
    return replace(response, content=NOT_IN_SOURCES, structured_output_json=ABSTENTION_JSON)


def confidence_of(
    request: Request, enforcement: Enforcement | None, count: Count | None
) -> tuple[float | None, ConfidenceSource]:
    """Return the confidence and its source. The confidence is None if it is unknown.

    The confidence is based on the votes, the semantic score, or the outcome of the rules. A schema alone does not
    indicate the quality of an answer.
    """
    if request.mode is Mode.REDUNDANT:
        return _of_votes(count)
    confidence = _of_validation(request, enforcement)
    if confidence is None:
        return None, ConfidenceSource.UNSPECIFIED
    return confidence, ConfidenceSource.VALIDATION


def _of_votes(count: Count | None) -> tuple[float | None, ConfidenceSource]:
    if count is None or count.agreement == 0:
        return None, ConfidenceSource.UNSPECIFIED
    return count.agreement, ConfidenceSource.VOTING


def _of_validation(request: Request, enforcement: Enforcement | None) -> float | None:
    if enforcement is None or not (request.rules or request.semantic_intent):
        return None
    if enforcement.semantic_score is not None:
        return enforcement.semantic_score
    if not request.rules:
        return None
    if not enforcement.valid or _outcome_of(enforcement, Stage.RULES) is StageOutcome.FAILED:
        return 0.0
    return 1.0


def _outcome_of(enforcement: Enforcement, stage: Stage) -> StageOutcome | None:
    return next((report.outcome for report in enforcement.stages if report.stage is stage), None)


def retrieval_confidence_of(run: Run) -> float | None:
    """Return the confidence of the context that PREPARE or the plan's steps retrieved, after any reranking."""
    if run.plan is None:
        return run.prepared.retrieval_confidence
    needed = dependencies_of(run.plan)
    reranked = {name for step in run.plan.steps if step.kind == StepKind.RERANK for name in needed[step.name]}
    chunks = [
        chunk
        for result in run.results
        if result.output is not None and result.output.kind is ValueKind.CONTEXT and result.name not in reranked
        for chunk in result.output.chunks
    ]
    return retrieval_confidence(last_user_text(run.request, ()), chunks)


def content_of(plan: Plan | None, results: Sequence[StepResult]) -> str:
    """Return the text of the final step, or of the last ended step if the final step did not end.

    Candidates and chunks are not text, so they appear only in the step's output.
    """
    ended = final_result(plan, results)
    if ended is None and results:
        ended = results[-1]
    if ended is None or ended.output is None:
        return ""
    if ended.output.kind is ValueKind.TOOL_RESULTS:
        return "\n".join(result.content for result in ended.output.results)
    return ended.output.text


def final_result(plan: Plan | None, results: Sequence[StepResult]) -> StepResult | None:
    """Return the result of a plan's final step, or None if the step has not ended."""
    if plan is None or not plan.steps:
        return None
    for result in results:
        if result.name == plan.steps[-1].name:
            return result
    return None


def is_cut(request: Request, output: InferenceOutput | None, enforcement: Enforcement) -> bool:
    """Return whether a limit or a stop text cut off an answer that has a contract.

    A cut answer is invalid, or was completed only by a repair. A remote engine does not report the stop text that ended
    its output, so a repaired output counts as cut if the request has stop texts.
    """
    if output is None or request.output.is_empty:
        return False
    was_repaired = any(
        stage.stage is Stage.JSON_REPAIR and stage.outcome is StageOutcome.REPAIRED for stage in enforcement.stages
    )
    if output.finish_reason is FinishReason.LENGTH or output.matched_stop:
        return was_repaired or not enforcement.valid
    return was_repaired and bool(request.hints.stop)


def truncation_of(request: Request, output: InferenceOutput, max_tokens: int = 0) -> Failure:
    """Return the failure for an answer that was cut off at `max_tokens` or by a stop text.

    A `max_tokens` of 0 selects the limit in the request, or else the default. The failure has the detail `stop` only if
    a stop text ended the answer. The detail is empty if the stop text is unknown.
    """
    limit = max_tokens or request.hints.max_tokens
    usage = output.usage
    details: dict[str, Any] = {
        "max_tokens": limit,
        "output_tokens": usage.output_tokens,
        "prompt_tokens": usage.prompt_tokens,
        "context_window": usage.context_window,
    }
    if output.max_bytes:
        details["max_bytes"] = output.max_bytes
    if output.finish_reason is not FinishReason.LENGTH:
        details["stop"] = output.matched_stop
    return failure_of(ErrorCode.INFERENCE_OUTPUT_TRUNCATED, _message_of(output, limit), details=details)


def _message_of(output: InferenceOutput, limit: int) -> str:
    usage = output.usage
    if output.finish_reason is not FinishReason.LENGTH:
        return "a stop text ended the answer before it was complete: leave it out of hints.stop"
    if output.max_bytes:
        return (
            f"the answer was cut at {output.max_bytes} bytes, half of MAX_MESSAGE_BYTES, before it was complete: ask "
            "for less, or for fewer log-probabilities"
        )
    if is_window_full(output):
        return (
            f"the answer was cut at the end of the context window of {usage.context_window} tokens, of which the "
            f"prompt took {usage.prompt_tokens}: shorten the prompt or ask for less"
        )
    name = f"max_tokens {limit}"
    if limit == 0:
        name = f"{usage.output_tokens} tokens, the default of max_tokens,"
    return f"the answer was cut at {name} before it was complete: raise hints.max_tokens or ask for less"


def is_window_full(output: InferenceOutput) -> bool:
    """Return whether the prompt and the answer filled the context window."""
    usage = output.usage
    return 0 < usage.context_window <= usage.context_tokens


def raised_limit(request: Request, output: InferenceOutput, max_tokens: int) -> int:
    """Return a higher max_tokens for another attempt, or 0 if a higher limit would not help.

    A higher limit does not help if the request set the limit, if the context window is full or unknown, or if the
    answer has reached its size limit.
    """
    usage = output.usage
    is_open = output.finish_reason is FinishReason.LENGTH and not (request.hints.max_tokens or output.max_bytes)
    if not is_open or usage.context_window <= 0:
        return 0
    room = usage.context_window - usage.prompt_tokens - _SPARE_TOKENS
    raised = min(room, RAISED_LIMIT_FACTOR * max(max_tokens, usage.output_tokens))
    if raised <= usage.output_tokens:
        return 0
    return raised


def truncation_warning(failure: Failure) -> ResponseWarning:
    """Return the warning about the truncation of a delivered response."""
    return ResponseWarning(TOO_LARGE if "max_bytes" in failure.details else TRUNCATED, failure.message)
