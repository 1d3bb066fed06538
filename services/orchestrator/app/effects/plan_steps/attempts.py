"""Runs one step of a plan, with retries by the step's policy and a timeout for each attempt."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Mapping
from dataclasses import replace

from pagantic_common.domain.calls.correlation import CorrelationContext
from pagantic_common.domain.deadline import Deadline
from pagantic_common.domain.errors import DeadlineExceeded, ErrorCode, Failure, PaganticError, failure_of
from pagantic_common.domain.usage import TokenUsage
from pagantic_common.telemetry.logging import get_logger, report_bug
from pagantic_common.telemetry.scope import work_scope
from services.orchestrator.app.effects.plan_steps.kinds import run_attempt
from services.orchestrator.app.effects.plan_steps.scope import PlanScope, StepAttempt, StepDone, StepFailedError
from services.orchestrator.app.failures import failure_from
from services.orchestrator.app.recording.observing import note_failure, step_span
from services.orchestrator.app.recording.recorder import attempt_scope
from services.orchestrator.core.execution import events
from services.orchestrator.core.execution.progress import StepEnded
from services.orchestrator.core.model.plan import Step, StepKind, StepResult, Value, path_of_step, retry_of

log = get_logger(__name__)


async def run_step(step: Step, inputs: Mapping[str, Value], plan: PlanScope) -> StepResult:
    """Run a step between its start and end events. The result contains any failure."""
    request, recorder, clock = plan.request, plan.scope.recorder, plan.scope.clock
    correlation = CorrelationContext(request_id=request.request_id, session_id=request.session_id, step_name=step.name)
    with plan.scope.branches.branch(), work_scope(correlation=correlation), step_span(step) as opened:
        start = events.StepStart(step.name, step.kind)
        await recorder.emit(start, caused_by=next(iter(inputs), "request"))
        started_s = clock.monotonic_s()
        result = await _attempt_until_done(step, inputs, plan)
        result = replace(result, duration_s=clock.monotonic_s() - started_s)
        note_failure(opened, result.failure)
        enforcement = None
        if plan.is_final(step):
            enforcement = plan.enforcement
        recorder.set_last_step(step.name, result.failure)
        await recorder.emit(
            events.StepEnd(step.name, step.kind, success=result.failure is None),
            entries=[StepEnded(result, enforcement)],
            is_durable=True,  # The step must not run again.
            duration_s=result.duration_s,
            failure=result.failure,
            caused_by=step.name,
        )
    return result


async def _attempt_until_done(step: Step, inputs: Mapping[str, Value], plan: PlanScope) -> StepResult:
    retry = retry_of(step, plan.request.retry)
    run_number = max(1, plan.progress.run_of(path_of_step(step.name))[0])
    usage = TokenUsage()
    for number in itertools.count(1):
        attempt = StepAttempt(step, inputs, plan, number, run_number)
        try:
            with attempt_scope(number):
                done = await _attempt_in_time(attempt)
        except StepFailedError as error:
            usage += error.usage
            failure = error.failure
        else:
            return _succeeded(attempt, done, usage)
        if not failure.retryable or number > retry.max_retries:
            usage += plan.progress.usage_of_child(path_of_step(step.name))
            return StepResult(step.name, step.kind, failure=failure, attempts=number, usage=usage)
        last = plan.last_attempts.get(step.name, run_number)
        if step.kind == StepKind.INFER:  # The next attempt streams again, so discard the text.
            with attempt_scope(last):
                await plan.scope.recorder.emit(events.AttemptDiscarded(last, failure.message))
        run_number = last + 1
        await plan.scope.clock.sleep(retry.wait_s(number, random.random()))  # noqa: S311 - not a secret
    raise AssertionError("attempts are counted without end")


def _succeeded(attempt: StepAttempt, done: StepDone, usage: TokenUsage) -> StepResult:
    step, plan = attempt.step, attempt.plan
    if plan.is_final(step):
        plan.enforcement = done.enforcement
    return StepResult(
        step.name,
        step.kind,
        output=done.output,
        attempts=attempt.number,
        usage=usage + done.usage + plan.progress.usage_of_child(path_of_step(step.name)),
        warnings=done.warnings,
    )


async def _attempt_in_time(attempt: StepAttempt) -> StepDone:
    """Run an attempt within the shorter of the step's and the plan's timeout. Raises only StepFailedError."""
    timeout_s = attempt.timeout_s
    deadline = Deadline.after(time.monotonic(), timeout_s)
    try:
        with work_scope(deadline=deadline):
            async with asyncio.timeout(timeout_s):
                return await run_attempt(attempt)
    except Exception as error:  # noqa: BLE001 - each becomes the attempt's failure
        if _is_timeout(error) and deadline.has_passed(time.monotonic()):
            raise _timed_out(attempt, timeout_s) from None
        raise _failed(attempt.step, error) from None


def _is_timeout(error: Exception) -> bool:
    if isinstance(error, StepFailedError):
        return error.failure.code is ErrorCode.CANCELLED_TIMEOUT
    return isinstance(error, TimeoutError | DeadlineExceeded)


def _failed(step: Step, error: Exception) -> StepFailedError:
    if isinstance(error, StepFailedError):
        return error
    if isinstance(error, PaganticError):
        return StepFailedError(failure_from(error))
    message = f"step {step.name!r}: {report_bug(log, error, step=step.name)}"
    return StepFailedError(Failure(code=None, message=message))


def _timed_out(attempt: StepAttempt, timeout_s: float | None) -> StepFailedError:
    step = attempt.step
    text = f"step {step.name!r} took more than {timeout_s or 0.0:g} s"
    if step.kind == StepKind.TOOL:
        tool = attempt.plan.tools.get(str(step.parameters.get("tool", "")))
        is_idempotent = tool is not None and tool.idempotent
        return StepFailedError(failure_of(ErrorCode.TOOL_TIMEOUT, text, tool_is_idempotent=is_idempotent))
    failure = failure_of(ErrorCode.ORCHESTRATION_STEP_TIMEOUT, text)
    return StepFailedError(replace(failure, retryable=failure.retryable and not attempt.has_called))
