"""Guards texts from outside executions: session changes, payloads of signals, and an approver's arguments."""

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
    """A change of a stored conversation: JSON values by name, new messages, and replaced messages by position."""

    values: Mapping[str, str] = field(default_factory=dict)
    appended: Sequence[Message] = ()
    replaced: Mapping[int, Message] = field(default_factory=dict)


class OutsideGuards:
    """Has the guards read texts on arrival, because executions do not check these texts again on use.

    A judging guard counts as running work of the caller, and its tokens are added to the caller's usage. Every method
    raises PermissionDenied (GUARD_BLOCKED) if a guard blocks a text, and Overloaded if too much work runs.
    """

    def __init__(self, environment: Environment, registry: Registry) -> None:
        self._environment = environment
        self._registry = registry

    async def check_session(self, change: SessionChange, account: Account) -> SessionChange:
        """Return a session change after the changes of the guards of inputs and tool results."""
        return await self._read(change, _mapped_change, _OF_A_SESSION, account)

    async def check_arguments(self, arguments_json: str, account: Account) -> str:
        """Return the changed arguments of a call after the changes of the guards of arguments."""
        stage = GuardStage.TOOL_ARGUMENTS
        return await self._read(arguments_json, lambda text, change: map_json(text, change, stage), (stage,), account)

    async def check_payload(self, payload_json: str, account: Account) -> str:
        """Return the payload of a signal after the changes of the guards of inputs."""
        return await self._read(payload_json, map_json, (GuardStage.INPUT,), account)

    async def _read(
        self, part: PartT, mapped: Callable[[PartT, Change], PartT], stages: Sequence[GuardStage], account: Account
    ) -> PartT:
        """Return a part of a call after the guards' changes; `mapped` applies a change to each text."""
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
    """Implements Reader for a call, which has no timeline: reports go to the log and the metrics."""

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
