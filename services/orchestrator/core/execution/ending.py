"""How a run ends: with an answer, or with a failure; and the response of both."""

from __future__ import annotations

from dataclasses import replace

from pagantic_common.domain.errors import ErrorCategory, Failure
from pagantic_common.domain.messages import Message, Role
from services.orchestrator.core.execution.commands import Command, Finish
from services.orchestrator.core.execution.lifecycle import State, check_transition
from services.orchestrator.core.execution.replicas import candidates_of
from services.orchestrator.core.execution.run import Outcome, Run, Transition
from services.orchestrator.core.execution.truncation import TRUNCATED, truncation_of, truncation_warning
from services.orchestrator.core.execution.validation import confidence_of, report_of, retrieval_confidence_of
from services.orchestrator.core.model.request import Mode
from services.orchestrator.core.model.response import FinishReason, Response
from services.orchestrator.core.model.response_warning import ResponseWarning
from services.orchestrator.core.plans.result import content_of


def move(run: Run, target: State, reason: str, command: Command | None = None) -> Outcome:
    """Make a transition and ask for what comes next; a move without a command is followed by another.

    A transition that the lifecycle's table lacks raises IllegalTransitionError.
    """
    check_transition(run.state, target)
    transition = Transition(run.state, target, run.attempt, reason)
    return Outcome(replace(run, state=target, outstanding=command), (transition,))


def ask(run: Run, command: Command) -> Outcome:
    """Ask for what comes next without a transition."""
    return Outcome(replace(run, outstanding=command))


def complete(run: Run, reason: str) -> Outcome:
    """End a run with its answer, which a stored conversation gains."""
    response = _response(run)
    if response.finish_reason is None and run.model:
        was_cut = any(warning.code == TRUNCATED for warning in _final_warnings(run))
        response = replace(response, finish_reason=FinishReason.LENGTH if was_cut else FinishReason.STOP)
    if response.confidence is None and (confidence := retrieval_confidence_of(run)) is not None:
        response = replace(response, confidence=confidence, confidence_source="RETRIEVAL")
    return move(run, State.COMPLETE, reason, Finish(response, _turn(run, response)))


def fail(run: Run, failure: Failure) -> Outcome:
    """End a run with a failure. What was said before a cancellation stays, marked as cut."""
    if run.last_failure is not None and run.last_failure != failure:
        failure = failure.because_of(run.last_failure)
    run = replace(run, last_failure=failure, count=run.count and replace(run.count, agreement=0.0))
    is_cancelled = failure.category is ErrorCategory.CANCELLATION
    target = State.CANCELLED if is_cancelled else State.ERROR
    code = failure.code.value if failure.code else "internal error"
    response = replace(_response(run), failure=failure)
    turn: tuple[Message, ...] = ()
    if is_cancelled:
        response = replace(response, finish_reason=FinishReason.CANCELLED)
        turn = _turn(run, response, is_cut=True) if run.streamed and run.streamed.content else ()
    return move(run, target, code, Finish(response, turn))


def _turn(run: Run, response: Response, *, is_cut: bool = False) -> tuple[Message, ...]:
    """Return what a stored conversation gains."""
    if run.request.mode is not Mode.CHAT or not run.request.session_id:
        return ()
    asked = [message for message in run.request.messages if message.role is not Role.SYSTEM]
    answer = Message(Role.ASSISTANT, content=response.content, reasoning=response.reasoning, cut=is_cut)
    return (*asked, *run.turn, *((answer,) if response.content else ()))


def _response(run: Run) -> Response:
    best, said = run.best, run.best_output or run.output
    if run.streamed is not None:
        best, said = None, run.streamed  # the stopped attempt is not the best one
        content = run.streamed.content
    elif best is not None:
        content = best.output
    else:
        content = said.content if said else content_of(run.plan, run.results)
    confidence, source = confidence_of(run.request, best, run.count)
    report = report_of(run.request, best, run.repair_attempts, is_cut=run.cut is not None) if best else None
    if report and run.count and len(run.replicas) < run.request.voting.n:
        report = replace(report, warnings=(*report.warnings, _early_warning(run)))
    return Response(
        request_id=run.request.request_id,
        session_id=run.request.session_id,
        content=content,
        structured_output_json=best.structured_output_json if best else "",
        tool_calls_made=run.records,
        confidence=confidence,
        confidence_source=source,
        validation=report,
        candidates=candidates_of(run),
        step_results=run.results,
        usage=run.usage,
        finish_reason=said.finish_reason if said else None,
        reasoning=said.reasoning if said else "",
        warnings=(*run.prepared.warnings, *_warnings(run)),
        logprobs=said.logprobs if said else (),
        seed=said.seed if said else run.seed,
        plan=run.plan,
    )


def _warnings(run: Run) -> tuple[ResponseWarning, ...]:
    if run.plan is not None:
        return tuple(warning for result in run.results for warning in result.warnings)
    if run.cut is not None:
        return (truncation_warning(run.cut),)
    if run.best is not None and not run.best.valid and not run.request.output.strict_validation:
        return (
            ResponseWarning("output_invalid", "the output does not satisfy its contract: strict_validation is off"),
        )
    if run.output is not None and run.output.finish_reason is FinishReason.LENGTH:
        return (truncation_warning(truncation_of(run.request, run.output, run.max_tokens)),)
    return ()


def _final_warnings(run: Run) -> tuple[ResponseWarning, ...]:
    """Return the warnings of a plan's final step."""
    final = run.plan.steps[-1].name if run.plan is not None and run.plan.steps else ""
    return next((result.warnings for result in run.results if result.name == final), ())


def _early_warning(run: Run) -> str:
    n = run.request.voting.n
    return f"decided after {len(run.replicas)} of {n} replicas: confidence is a lower bound"
