"""Handles the decisions of a DECIDE execution: one command asks all questions, and its answer ends the run."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from pagantic_common.domain.messages import Message
from pagantic_common.domain.text.calibration import LabelCalibration, shares_of
from pagantic_common.domain.usage import TokenUsage
from services.orchestrator.core.conversation.decision_prompt import AskedQuestion, ask, decision_messages
from services.orchestrator.core.kernel.command import Answer, AnsweredCommand
from services.orchestrator.core.model.decision import Abstention, Decision, Decisions, Question
from services.orchestrator.core.model.response import FinishReason, InferenceOutput
from services.orchestrator.core.turn.ending import complete
from services.orchestrator.core.turn.run import Outcome, Run


@dataclass(frozen=True, slots=True)
class Decided(Answer):
    """The scores of the questions.

    `logprobs` are the log-probabilities (natural logarithm) of each question's labels, `model` is the alias that
    scored them, and `calibration` is the calibration that scales them.
    """

    kind: ClassVar[str] = "Decided"

    logprobs: tuple[tuple[float, ...], ...]
    usage: TokenUsage = TokenUsage()
    model: str = ""
    calibration: LabelCalibration | None = None


@dataclass(frozen=True, slots=True)
class Decide(AnsweredCommand):
    """The command to score the labels of each question with the model.

    `calibration` is the name of a calibration, or an empty string for no calibration.
    """

    answer: ClassVar[type[Decided]] = Decided
    step: ClassVar[str] = "decide"

    messages: tuple[Message, ...]
    questions: tuple[AskedQuestion, ...]
    calibration: str = ""

    def after(self, run: Run, decided: Decided) -> Outcome:
        """Decide each question, and end the run with the decisions."""
        decisions = _decisions_of(run)
        made = tuple(
            _decision_of(question, logprobs, decisions, decided.calibration)
            for question, logprobs in zip(decisions.questions, decided.logprobs, strict=True)
        )
        output = InferenceOutput("", FinishReason.STOP, usage=decided.usage, model=decided.model, decisions=made)
        return complete(replace(run, output=output, model=decided.model), f"{len(made)} questions are answered")


def decide(run: Run) -> Decide:
    """Return the command that scores the questions."""
    request = run.request
    return Decide(
        messages=decision_messages(run.prepared.system_prompt, request.messages),
        questions=tuple(map(ask, _decisions_of(run).questions)),
        calibration=_decisions_of(run).calibration,
    )


def _decision_of(
    question: Question, logprobs: tuple[float, ...], decisions: Decisions, calibration: LabelCalibration | None
) -> Decision:
    probabilities = shares_of(logprobs)
    if calibration is not None:
        probabilities = calibration.shares_of([option.text for option in question.options], logprobs)
    label_mass = min(1.0, math.fsum(map(math.exp, logprobs)))
    decision = Decision(question.kind, probabilities, label_mass, question.name)
    if label_mass < decisions.min_label_mass:
        return replace(decision, abstention=Abstention.LOW_LABEL_MASS)
    if decision.confidence < decisions.min_confidence:
        return replace(decision, abstention=Abstention.LOW_CONFIDENCE)
    return decision


def _decisions_of(run: Run) -> Decisions:
    decisions = run.request.decisions
    assert decisions is not None  # noqa: S101 - the admission of a DECIDE request checks it
    return decisions
