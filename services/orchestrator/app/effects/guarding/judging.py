"""Lets a model decide whether a guard's statements are true of texts."""

from __future__ import annotations

from collections.abc import Sequence

from pagantic_common.domain.errors import Failure
from pagantic_common.domain.messages import Message, Role
from pagantic_common.domain.text.calibration import shares_of
from pagantic_common.guards.plugin import Finding
from pagantic_common.guards.redaction import Window
from services.orchestrator.app.effects.scope import RunScope, end_of, inference_events
from services.orchestrator.app.services import ScoreLabels
from services.orchestrator.core.conversation.decision_prompt import ask, decision_messages
from services.orchestrator.core.execution import events
from services.orchestrator.core.guards.rules import GuardRule
from services.orchestrator.core.model.decision import Question, QuestionKind
from services.orchestrator.core.model.request import Request, side_hints
from services.orchestrator.core.model.response import FinishReason, InferenceOutput
from services.orchestrator.core.turn.deciding import Decide
from services.orchestrator.ports.services import QuestionScores

JUDGED = "judged"  # the kind of a judge's findings


async def judge(
    rule: GuardRule, windows: Sequence[Window], request: Request, scope: RunScope
) -> list[tuple[Finding, ...]]:
    """Have the model judge the texts together. If any statement is true, return a finding in each text."""
    command = decision_on(rule, windows)
    scores = QuestionScores(())

    def end(failure: Failure | None) -> events.InferenceEnd:
        reason = FinishReason.STOP if failure is None else FinishReason.ERROR
        return end_of(InferenceOutput("", reason, usage=scores.usage, model=scores.model))

    async with inference_events(request, command, scope, end, events.InferencePurpose.JUDGE):
        scores = await scope.services.do(ScoreLabels(side_hints(request.hints), command))
    scope.inference.lost += scores.usage  # This usage is added to the next answer of the run.
    return findings_of(rule, windows, scores)


def decision_on(rule: GuardRule, windows: Sequence[Window]) -> Decide:
    """Return the command to decide whether a guard's statements are true of the texts."""
    questions = [ask(Question(QuestionKind.PREDICATE, statement)) for statement in rule.traits.statements]
    messages = [Message(Role.USER, content=window.text) for window in windows]
    return Decide(decision_messages("", messages), tuple(questions))


def findings_of(rule: GuardRule, windows: Sequence[Window], scores: QuestionScores) -> list[tuple[Finding, ...]]:
    """Return a finding in each text if the model considers any statement true, or no findings otherwise."""
    if all(shares_of(logprobs)[0] < rule.traits.threshold for logprobs in scores.logprobs):
        return [()] * len(windows)
    return [(Finding(0, len(window.text), JUDGED),) for window in windows]
