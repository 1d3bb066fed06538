"""Scorers that ask a model: a judge's decision, and the similarity of embeddings."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field

from gateway.evaluation.scoring.answer import MISSING
from gateway.evaluation.scoring.scorer import (
    Expectation,
    ExpectingScorer,
    Score,
    Scorer,
    Subject,
    text_of,
)
from pagantic.common.v1 import message_pb2
from pagantic.orchestrator.v1 import decision_pb2
from pagantic_common.client import decide_request, predicate, raise_for_error, score

MAX_LEVELS = 255
_STATEMENT = "The assistant's answer meets this requirement: {rubric}"
_QUESTION = "How well does the assistant's answer meet this requirement? {rubric}"
_REFERENCE = "\nA right answer is: {expected}"


class Judge(Scorer):
    """A model's probability that the answer meets the rubric of the scorer or of the case.

    With `levels`, ordered from worst to best, the score is the expected level, scaled from 0 to 1. `reference` also
    shows the judge the expected answer. A decision with a confidence below `min_confidence` yields no score.
    """

    type: Literal["judge"] = "judge"
    rubric: str = ""
    levels: Annotated[list[str], Field(min_length=2, max_length=MAX_LEVELS)] | None = None
    reference: bool = False
    model: str = ""
    calibration: str = ""
    min_confidence: float = Field(default=0.0, ge=0, le=1)

    def lacks(self, expectation: Expectation) -> str:
        """Return `rubric` if neither the scorer nor the case has a rubric, or `expected` if the judge lacks it."""
        if not (self.rubric or expectation.rubric).strip():
            return "rubric"
        if self.reference and expectation.expected is MISSING:
            return "expected"
        return ""

    async def score(self, subject: Subject) -> Score:
        """Ask the judge under a derived request id, so that the system answers the same question only once."""
        request = decide_request(
            [
                message_pb2.Message(role=message_pb2.ROLE_USER, content=subject.expectation.input),
                message_pb2.Message(role=message_pb2.ROLE_ASSISTANT, content=_shown(subject)),
            ],
            [self._question(subject.expectation)],
            min_confidence=self.min_confidence,
            calibration=self.calibration,
            request_id=f"{subject.request.request_id}.{self.label}",
            model=self.model,
        )
        response = raise_for_error(await subject.client.execute(request))
        return self._score_of(response.decisions[0])

    def _question(self, expectation: Expectation) -> decision_pb2.Question:
        reference = ""
        if self.reference:
            reference = _REFERENCE.format(expected=expectation.expected_text)
        form = _STATEMENT
        if self.levels:
            form = _QUESTION
        words = form.format(rubric=self.rubric or expectation.rubric) + reference
        if self.levels:
            return score(words, self.levels)
        return predicate(words)

    def _score_of(self, decision: decision_pb2.Decision) -> Score:
        if decision.abstention:
            return Score(None, "the judge abstains: its confidence is too low", decision.confidence)
        if self.levels:
            return Score(decision.score.score / (len(self.levels) - 1), confidence=decision.confidence)
        return Score(decision.predicate.probability, confidence=decision.confidence)


class Semantic(ExpectingScorer):
    """The cosine of the embeddings of the answer and the expected text. A negative cosine counts as 0."""

    type: Literal["semantic"] = "semantic"
    model: str = ""

    async def score(self, subject: Subject) -> Score:
        """Embed the expected text and the answer, and return the cosine of the embeddings."""
        texts = [subject.expectation.expected_text, text_of(self.found(subject.answer))]
        if not all(text.strip() for text in texts):
            return Score(0.0, "a text is empty")
        response = await subject.client.embed(texts, model=self.model)
        one, other = (embedding.values for embedding in response.embeddings)
        cosine = math.fsum(left * right for left, right in zip(one, other, strict=True))
        return Score(min(1.0, max(0.0, cosine)))


def _shown(subject: Subject) -> str:
    return subject.answer.text or "(no answer)"
