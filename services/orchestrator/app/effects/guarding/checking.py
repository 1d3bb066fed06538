"""Runs all guards of a stage on whole texts, one guard after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pagantic_common.guards.plugin import GuardStage
from pagantic_common.guards.redaction import Window, redact
from services.orchestrator.app.effects.guarding.guard_runs import (
    GuardFailedError,
    blocked,
    outcome_of_failure,
    report_action,
    run_guard,
)
from services.orchestrator.app.effects.scope import RunScope
from services.orchestrator.core.execution.commands import CheckInput
from services.orchestrator.core.execution.inputs import InputChecked
from services.orchestrator.core.execution.run import Run
from services.orchestrator.core.guards.rules import GuardAction, GuardOutcome, GuardRule, Tally, rules_for
from services.orchestrator.core.guards.texts import GuardedText, texts_of
from services.orchestrator.core.model.request import Request
from services.orchestrator.core.model.response_warning import ResponseWarning


@dataclass(frozen=True, slots=True)
class Checked:
    """The texts as changed by the guards, and warnings about the changes."""

    texts: tuple[str, ...]
    warnings: tuple[ResponseWarning, ...] = ()


def guards_of(stage: GuardStage, request: Request, scope: RunScope) -> tuple[GuardRule, ...]:
    """Return the guards that check a request's texts at a stage."""
    guards = scope.services.guards
    if guards is None:
        return ()
    return rules_for(guards.rules, stage, request.tenant)


async def check_input(run: Run, _command: CheckInput, scope: RunScope) -> InputChecked:
    """Check the request with the guards. Raises PermissionDenied (GUARD_BLOCKED) if a guard blocks it."""
    texts = texts_of(run.request)
    checked = await check_texts(texts, GuardStage.INPUT, run.request, scope)
    texts = tuple(replace(guarded_text, text=text) for guarded_text, text in zip(texts, checked.texts, strict=True))
    results = await check_texts(texts, GuardStage.TOOL_RESULTS, run.request, scope)
    warnings = (*checked.warnings, *results.warnings)
    return InputChecked(results.texts if warnings else (), warnings, scope.inference.take_lost())


async def check_texts(
    texts: Sequence[GuardedText], stage: GuardStage, request: Request, scope: RunScope, *, tool_call_id: str = ""
) -> Checked:
    """Check the texts of a stage with the guards of that stage.

    Raises PermissionDenied (GUARD_BLOCKED) if a text is blocked.
    """
    passing, warnings = list(texts), []
    for rule in guards_of(stage, request, scope):
        read = [place for place, text in enumerate(passing) if _reads(rule, stage, text)]
        if not read:
            continue
        look_at = _Place(rule, stage, request, tool_call_id)
        changed, warning = await _check(look_at, [passing[place].text for place in read], scope)
        for place, text in zip(read, changed, strict=True):
            passing[place] = replace(passing[place], text=text)
        warnings += warning
    return Checked(tuple(text.text for text in passing), tuple(warnings))


def _reads(rule: GuardRule, stage: GuardStage, text: GuardedText) -> bool:
    if not text.text or text.stage is not stage:
        return False
    return stage is not GuardStage.INPUT or text.is_untrusted or not rule.traits.reads_untrusted_only


@dataclass(frozen=True, slots=True)
class _Place:
    """The context of a check: the guard, the stage, the request and the tool call."""

    rule: GuardRule
    stage: GuardStage
    request: Request
    tool_call_id: str


async def _check(at: _Place, texts: Sequence[str], scope: RunScope) -> tuple[list[str], list[ResponseWarning]]:
    """Return the texts as changed by one guard, and the guard's warnings."""
    tally = Tally(at.rule, at.stage)
    try:
        text_findings = await run_guard(at.rule, [Window(text, 0) for text in texts], at.request, scope)
    except GuardFailedError:
        outcome = outcome_of_failure(at.rule)
        checked_texts = list(texts)
    else:
        redacted = [redact(text, findings) for text, findings in zip(texts, text_findings, strict=True)]
        for redaction in redacted:
            tally.add(redaction.kinds)
        if not tally.kinds:
            return list(texts), []
        checked_texts = [redaction.text for redaction in redacted]
        outcome = GuardOutcome.REDACTED if at.rule.action is GuardAction.REDACT else GuardOutcome.BLOCKED
    report = tally.report(outcome)
    await report_action(report, scope, at.tool_call_id)
    if report.is_blocked:
        raise blocked(report)
    return checked_texts, [report.warning]
