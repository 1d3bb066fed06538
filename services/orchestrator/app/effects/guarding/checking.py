"""Runs all guards of a stage on whole texts, one guard after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from pagantic_common.guards.plugin import GuardStage
from pagantic_common.guards.redaction import Window, redact
from services.orchestrator.app.effects.guarding.guard_runs import (
    Findings,
    GuardFailedError,
    blocked,
    outcome_of_failure,
    report_action,
    run_guard,
)
from services.orchestrator.app.effects.scope import RunScope
from services.orchestrator.core.guards.rules import GuardAction, GuardOutcome, GuardReport, GuardRule, Tally, rules_for
from services.orchestrator.core.guards.texts import GuardedText, texts_of
from services.orchestrator.core.model.request import Request
from services.orchestrator.core.model.response_warning import ResponseWarning
from services.orchestrator.core.turn.preparing import CheckInput, InputChecked
from services.orchestrator.core.turn.run import Run


class Reader(Protocol):
    """Has one guard read texts, and reports the guard's actions on its findings."""

    async def find(self, rule: GuardRule, windows: Sequence[Window]) -> Findings:
        """Return the findings in each text. Raises GuardFailedError if the guard fails."""

    async def report(self, report: GuardReport) -> None:
        """Report the guard's action."""


@dataclass(frozen=True, slots=True)
class Checked:
    """The texts after the guards' changes, and warnings about the changes."""

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
    """Check the texts of a stage of an execution with the guards of that stage.

    Raises PermissionDenied (GUARD_BLOCKED) if a text is blocked.
    """
    reader = _ExecutionReader(request, scope, tool_call_id)
    return await read_texts(texts, stage, guards_of(stage, request, scope), reader)


@dataclass(frozen=True, slots=True)
class _ExecutionReader:
    """Implements Reader for an execution. The reports become events of its timeline."""

    request: Request
    scope: RunScope
    tool_call_id: str

    async def find(self, rule: GuardRule, windows: Sequence[Window]) -> Findings:
        return await run_guard(rule, windows, self.request, self.scope)

    async def report(self, report: GuardReport) -> None:
        await report_action(report, self.scope, self.tool_call_id)


async def read_texts(
    texts: Sequence[GuardedText], stage: GuardStage, rules: Sequence[GuardRule], reader: Reader
) -> Checked:
    """Check the texts of a stage with guards in order. Raises PermissionDenied (GUARD_BLOCKED) if a text is blocked."""
    passing, warnings = list(texts), []
    for rule in rules:
        read = [place for place, text in enumerate(passing) if _reads(rule, stage, text)]
        if not read:
            continue
        changed, warning = await _check(rule, stage, [passing[place].text for place in read], reader)
        for place, text in zip(read, changed, strict=True):
            passing[place] = replace(passing[place], text=text)
        warnings += warning
    return Checked(tuple(text.text for text in passing), tuple(warnings))


def _reads(rule: GuardRule, stage: GuardStage, text: GuardedText) -> bool:
    if not text.text or text.stage is not stage:
        return False
    return stage is not GuardStage.INPUT or text.is_untrusted or not rule.traits.reads_untrusted_only


async def _check(
    rule: GuardRule, stage: GuardStage, texts: Sequence[str], reader: Reader
) -> tuple[list[str], list[ResponseWarning]]:
    """Return the texts after one guard's changes, and the guard's warnings."""
    tally = Tally(rule, stage)
    distinct = list(dict.fromkeys(texts))  # The words of schemas repeat.
    try:
        text_findings = await reader.find(rule, [Window(text, 0) for text in distinct])
    except GuardFailedError:
        outcome = outcome_of_failure(rule)
        checked_texts = list(texts)
    else:
        pairs = zip(distinct, text_findings, strict=True)
        redacted = {text: redact(text, findings) for text, findings in pairs}
        for text in texts:
            tally.add(redacted[text].kinds)
        if not tally.kinds:
            return list(texts), []
        checked_texts = [redacted[text].text for text in texts]
        outcome = GuardOutcome.REDACTED if rule.action is GuardAction.REDACT else GuardOutcome.BLOCKED
    report = tally.report(outcome)
    await reader.report(report)
    if report.is_blocked:
        raise blocked(report)
    return checked_texts, [report.warning]
