"""Runs one guard on texts, in a worker process or as a decision of the model, and reports its actions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from pagantic_common.domain.errors import ErrorCategory, PaganticError, PermissionDenied
from pagantic_common.guards.plugin import Finding
from pagantic_common.guards.redaction import Window
from pagantic_common.telemetry.logging import get_logger
from pagantic_common.telemetry.metrics import make_counter
from pagantic_common.telemetry.names import ORCHESTRATOR_GUARD_FAILURES, ORCHESTRATOR_GUARD_FINDINGS
from pagantic_common.telemetry.tracing import span
from services.orchestrator.app.effects.guarding.judging import judge
from services.orchestrator.app.effects.scope import RunScope
from services.orchestrator.app.failures import failure_from
from services.orchestrator.core.execution import events
from services.orchestrator.core.guards.rules import GuardOutcome, GuardReport, GuardRule, OnFailure
from services.orchestrator.core.model.request import Request
from services.orchestrator.ports.guards import GuardRunner

log = get_logger(__name__)
findings_counter = make_counter(ORCHESTRATOR_GUARD_FINDINGS, "findings of guards, by guard, stage and action")
failures_counter = make_counter(ORCHESTRATOR_GUARD_FAILURES, "looks of guards that failed or were late, by guard")

Findings = list[tuple[Finding, ...]]


class GuardFailedError(Exception):
    """The error for a guard that failed or timed out. The log states the reason."""


async def run_guard(rule: GuardRule, windows: Sequence[Window], request: Request, scope: RunScope) -> Findings:
    """Return the findings in each text of an execution. Raises the errors of `look`."""

    async def find() -> Findings:
        if rule.traits.statements:
            return await judge(rule, windows, request, scope)
        return await _runner(scope).find(rule, windows)

    return await look(rule, find)


async def look(rule: GuardRule, find: Callable[[], Awaitable[Findings]]) -> Findings:
    """Return the findings of a guard within its timeout. Raises GuardFailedError if the guard fails.

    Errors that end the request are raised unchanged.
    """
    try:
        with span(f"guard {rule.name}"):
            async with asyncio.timeout(rule.timeout_s):
                return await find()
    except TimeoutError:
        reason = f"it took more than {rule.timeout_s:g} s"
    except PaganticError as error:
        if failure_from(error).category is ErrorCategory.CANCELLATION:
            raise
        reason = str(error)
    failures_counter.add(1, {"guard": rule.name})
    log.warning("a guard failed", guard=rule.name, on_failure=rule.on_failure.value, reason=reason)
    raise GuardFailedError


def _runner(scope: RunScope) -> GuardRunner:
    guards = scope.services.guards
    assert guards is not None  # noqa: S101 - the guards contain this rule
    return guards.runner


async def report_action(report: GuardReport, scope: RunScope, tool_call_id: str = "") -> None:
    """Report a guard's action in the metrics and as an event of the timeline."""
    count_findings(report)
    failure = report.failure if report.is_blocked else None
    await scope.recorder.emit(
        events.GuardActed(report), failure=failure, tool_call_id=tool_call_id, caused_by=scope.cause
    )


def count_findings(report: GuardReport) -> None:
    """Count a guard's findings in the metrics."""
    if not report.findings:
        return
    labels = {"guard": report.guard, "stage": report.stage.value, "action": report.outcome.value.lower()}
    findings_counter.add(report.findings, labels)


def blocked(report: GuardReport) -> PermissionDenied:
    """Return the error for a blocked text."""
    return PermissionDenied(failure=report.failure)


def outcome_of_failure(rule: GuardRule) -> GuardOutcome:
    """Return the outcome for a text if its guard failed."""
    if rule.on_failure is OnFailure.CLOSED:
        return GuardOutcome.FAILED_CLOSED
    return GuardOutcome.FAILED_OPEN
