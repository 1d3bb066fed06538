"""Guards texts that reach models from outside of executions: changes of a session, and arguments of an approver."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from pagantic_common.domain.messages import Message
from pagantic_common.guards.plugin import GuardStage
from pagantic_common.guards.redaction import Window
from pagantic_common.telemetry.logging import get_logger
from services.orchestrator.app.effects.guarding.checking import read_texts
from services.orchestrator.app.effects.guarding.guard_runs import Findings, count_findings, look
from services.orchestrator.app.effects.guarding.judging import decision_on, findings_of
from services.orchestrator.app.recording.recorder import count_usage
from services.orchestrator.app.running.environment import Environment
from services.orchestrator.app.running.registry import Registry
from services.orchestrator.app.services import ScoreLabels
from services.orchestrator.core.cost import prices_for
from services.orchestrator.core.guards.rules import GuardReport, GuardRule, rules_for
from services.orchestrator.core.guards.texts import Change, gathered, map_json, map_message
from services.orchestrator.core.model.keys import Account
from services.orchestrator.core.model.request import Hints, side_hints
from services.orchestrator.ports.guards import Guards

log = get_logger(__name__)
PartT = TypeVar("PartT")
_OF_A_SESSION = (GuardStage.INPUT, GuardStage.TOOL_RESULTS)


@dataclass(frozen=True, slots=True)
class SessionChange:
    """A change of a stored conversation: JSON values by name, new messages, and messages at positions of others."""

    values: Mapping[str, str] = field(default_factory=dict)
    appended: Sequence[Message] = ()
    replaced: Mapping[int, Message] = field(default_factory=dict)


class OutsideGuards:
    """Has the guards read texts when they are sent, because executions do not read them again when they use them.

    A judging guard counts as running work of the caller, and its tokens are added to the caller's usage. Every method
    raises PermissionDenied (GUARD_BLOCKED) if a guard blocks a text, and Overloaded if too much work runs.
    """

    def __init__(self, environment: Environment, registry: Registry) -> None:
        self._environment = environment
        self._registry = registry

    async def check_session(self, change: SessionChange, account: Account) -> SessionChange:
        """Return a change of a session as the guards of inputs and of tool results leave it."""
        return await self._read(change, _mapped_change, _OF_A_SESSION, account)

    async def check_arguments(self, arguments_json: str, account: Account) -> str:
        """Return the changed arguments of a call as the guards of arguments leave them."""
        stage = GuardStage.TOOL_ARGUMENTS
        return await self._read(arguments_json, lambda text, change: map_json(text, change, stage), (stage,), account)

    async def _read(
        self, part: PartT, mapped: Callable[[PartT, Change], PartT], stages: Sequence[GuardStage], account: Account
    ) -> PartT:
        """Return a part of a call with its texts as the guards leave them; `mapped` applies a change to each text."""
        guards = self._environment.services.guards
        rules = {stage: rules_for(guards.rules if guards else (), stage, account.tenant) for stage in stages}
        if guards is None or not any(rules.values()):
            return part
        texts = gathered(lambda change: mapped(part, change))
        reader = _CallReader(guards, account, self._environment)
        with self._registry.counted(account, 0):
            for stage in stages:
                checked = await read_texts(texts, stage, rules[stage], reader)
                texts = [replace(text, text=left) for text, left in zip(texts, checked.texts, strict=True)]
        left = iter(texts)
        return mapped(part, lambda _: next(left).text)


def _mapped_change(sent: SessionChange, change: Change) -> SessionChange:
    return SessionChange(
        {name: map_json(text, change) for name, text in sent.values.items()},
        [map_message(message, change) for message in sent.appended],
        {position: map_message(message, change) for position, message in sent.replaced.items()},
    )


@dataclass(frozen=True, slots=True)
class _CallReader:
    """Implements Reader for a call, which has no timeline: the log and the metrics have the reports."""

    guards: Guards
    account: Account
    environment: Environment

    async def find(self, rule: GuardRule, windows: Sequence[Window]) -> Findings:
        if rule.traits.statements:
            return await look(rule, lambda: self._judge(rule, windows))
        return await look(rule, lambda: self.guards.runner.find(rule, windows))

    async def report(self, report: GuardReport) -> None:
        count_findings(report)
        log.info(
            "a guard acted on a text from outside of executions",
            guard=report.guard,
            stage=report.stage.value,
            outcome=report.outcome.value.lower(),
            findings=report.findings,
            kinds=report.kinds,
        )

    async def _judge(self, rule: GuardRule, windows: Sequence[Window]) -> Findings:
        command = decision_on(rule, windows)
        scores = await self.environment.services.do(ScoreLabels(side_hints(Hints()), command))
        prices = prices_for(self.environment.limits.prices, "", scores.model)
        await count_usage(self.environment.journal, self.account, scores.usage, scores.model, prices)
        return findings_of(rule, windows, scores)
