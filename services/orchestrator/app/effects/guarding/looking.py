"""Has one guard look at texts, in a worker or by a decision of the model, and tells what it did."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pagantic_common.domain.errors import ErrorCategory, Failure, PaganticError, PermissionDenied
from pagantic_common.domain.guards.plugin import Finding
from pagantic_common.domain.guards.redaction import Window
from pagantic_common.domain.messages import Message, Role
from pagantic_common.domain.text.calibration import shares_of
from pagantic_common.telemetry.logging import get_logger
from pagantic_common.telemetry.metrics import make_counter
from pagantic_common.telemetry.names import ORCHESTRATOR_GUARD_FINDINGS
from services.orchestrator.app.effects.scope import RunScope
from services.orchestrator.app.effects.telling import end_of, told
from services.orchestrator.app.failures import failure_from
from services.orchestrator.core.conversation.decision_prompt import ask, decision_messages
from services.orchestrator.core.execution import events
from services.orchestrator.core.execution.commands import Decide
from services.orchestrator.core.execution.events import InferencePurpose
from services.orchestrator.core.guards.rules import GuardOutcome, GuardReport, GuardRule, OnFailure
from services.orchestrator.core.model.decision import Question, QuestionKind
from services.orchestrator.core.model.request import Request, side_hints
from services.orchestrator.core.model.response import FinishReason, InferenceOutput
from services.orchestrator.ports.guards import GuardRunner
from services.orchestrator.ports.services import QuestionScores

JUDGED = "judged"  # the kind of what a model finds

log = get_logger(__name__)
findings_counter = make_counter(ORCHESTRATOR_GUARD_FINDINGS, "findings of guards, by guard, stage and action")


class GuardFailedError(Exception):
    """A guard failed or was late; the log says why."""


async def look(
    rule: GuardRule, windows: Sequence[Window], request: Request, scope: RunScope
) -> list[tuple[Finding, ...]]:
    """Return the findings in each text; raises GuardFailedError. What ends the request passes through."""
    try:
        async with asyncio.timeout(rule.timeout_s):
            if rule.traits.statements:
                return await _judge(rule, windows, request, scope)
            return await _runner(scope).find(rule, windows)
    except TimeoutError:
        reason = f"it took more than {rule.timeout_s:g} s"
    except PaganticError as error:
        if failure_from(error).category is ErrorCategory.CANCELLATION:
            raise
        reason = str(error)
    log.warning("a guard failed", guard=rule.name, on_failure=rule.on_failure.value, reason=reason)
    raise GuardFailedError


def _runner(scope: RunScope) -> GuardRunner:
    guards = scope.services.guards
    assert guards is not None  # noqa: S101 - its rules are here
    return guards.runner


async def _judge(
    rule: GuardRule, windows: Sequence[Window], request: Request, scope: RunScope
) -> list[tuple[Finding, ...]]:
    """Have the model judge the texts as one; each has a finding if a statement is true of them."""
    questions = [ask(Question(QuestionKind.PREDICATE, statement)) for statement in rule.traits.statements]
    said = [Message(Role.USER, content=window.text) for window in windows]
    command = Decide(decision_messages("", said), tuple(questions))
    scores = QuestionScores(())

    def end(failure: Failure | None) -> events.InferenceEnd:
        reason = FinishReason.STOP if failure is None else FinishReason.ERROR
        return end_of(InferenceOutput("", reason, usage=scores.usage, model=scores.model))

    async with told(request, command, scope, end, InferencePurpose.JUDGE):
        scores = await scope.services.inference.decide(command, side_hints(request.hints))
    scope.inference.lost += scores.usage  # what is answered next takes it
    if all(shares_of(logprobs)[0] < rule.traits.threshold for logprobs in scores.logprobs):
        return [()] * len(windows)
    return [(Finding(0, len(window.text), JUDGED),) for window in windows]


async def tell(report: GuardReport, scope: RunScope, tool_call_id: str = "") -> None:
    """Tell what a guard did: an event of the timeline, and the metric."""
    if report.findings:
        labels = {"guard": report.guard, "stage": report.stage.value, "action": report.outcome.value.lower()}
        findings_counter.add(report.findings, labels)
    failure = report.failure if report.is_blocked else None
    await scope.recorder.emit(
        events.GuardActed(report), failure=failure, tool_call_id=tool_call_id, caused_by=scope.cause
    )


def blocked(report: GuardReport) -> PermissionDenied:
    """Return the error of what a guard blocks."""
    return PermissionDenied(failure=report.failure)


def outcome_of_failure(rule: GuardRule) -> GuardOutcome:
    """Return what becomes of a text that a guard could not check."""
    if rule.on_failure is OnFailure.CLOSED:
        return GuardOutcome.FAILED_CLOSED
    return GuardOutcome.FAILED_OPEN
