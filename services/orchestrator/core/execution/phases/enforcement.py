"""Handles the validation of an answer: delivers the answer, retries, or fails."""

from __future__ import annotations

from dataclasses import replace

from pagantic_common.domain.errors import ErrorCode, Failure, failure_of
from pagantic_common.domain.messages import Message, Role
from pagantic_common.domain.validation import Enforcement
from services.orchestrator.core.conversation.prompt import feedback_message
from services.orchestrator.core.execution.ending import complete, fail, move
from services.orchestrator.core.execution.inputs import Enforced
from services.orchestrator.core.execution.lifecycle import State
from services.orchestrator.core.execution.phases.asking import infer
from services.orchestrator.core.execution.run import DiscardedAttempt, Outcome, Run, count_repairs
from services.orchestrator.core.execution.truncation import is_cut, raised_limit, truncation_of
from services.orchestrator.core.model.response import FinishReason, InferenceOutput


def after_enforcement(run: Run, enforced: Enforced) -> Outcome:
    """Deliver a valid answer. Retry an invalid or truncated answer, or end the run if no retry is possible."""
    enforcement = enforced.enforcement
    output = run.output or InferenceOutput("", FinishReason.STOP)
    cut = _truncation_of(run, enforcement)
    is_right = enforcement.valid and cut is None
    failure = cut or enforcement.failure
    run = replace(run, repair_attempts=run.repair_attempts + count_repairs(enforcement), last_failure=failure)
    if is_right or _is_better(enforcement, run.best):
        run = replace(run, best=enforcement, best_output=output, cut=cut)
    if is_right:
        return complete(run, "all stages passed")
    retried = _retry(run, enforcement, output, cut)
    if retried is not None:
        return retried
    if not run.request.output.strict_validation:
        return complete(run, f"attempts used up after {run.attempt}, strict_validation is off")
    return fail(run, failure or failure_of(ErrorCode.CONSTRAINT_SCHEMA_INVALID, "validation failed"))


def _truncation_of(run: Run, enforcement: Enforcement) -> Failure | None:
    if run.output is None or not is_cut(run.request, run.output, enforcement):
        return None
    return truncation_of(run.request, run.output, run.max_tokens)


def _is_better(enforcement: Enforcement, best: Enforcement | None) -> bool:
    return best is None or len(enforcement.violations) <= len(best.violations)


def _retry(run: Run, enforcement: Enforcement, output: InferenceOutput, cut: Failure | None) -> Outcome | None:
    """Retry a truncated answer with a higher limit, or an invalid answer with feedback.

    Returns None if no retries are left, or if the limit cannot be raised.
    """
    if run.attempt > run.request.retry.max_retries:
        return None
    if cut is None:
        return _start_attempt(_with_feedback(run, enforcement, output), "validation failed")
    raised = raised_limit(run.request, output, run.max_tokens)
    if not raised:
        return None
    return _start_attempt(replace(run, max_tokens=raised), "the answer was cut")


def _with_feedback(run: Run, enforcement: Enforcement, output: InferenceOutput) -> Run:
    transcript = run.transcript
    if output.content:
        transcript += (Message(Role.ASSISTANT, content=output.content, reasoning=output.reasoning),)
    feedback = feedback_message([violation.message for violation in enforcement.violations])
    return replace(run, transcript=(*transcript, feedback), max_tokens=0)


def _start_attempt(run: Run, reason: str) -> Outcome:
    """Start the next attempt, and discard the text of the current attempt."""
    changed = replace(run, attempt=run.attempt + 1)
    retried = move(changed, State.EXECUTE, f"{reason}, a retry is left", infer(changed, run.attempt))
    return replace(retried, discarded=DiscardedAttempt(run.attempt, reason))
