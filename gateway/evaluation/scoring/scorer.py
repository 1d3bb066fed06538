"""The interface of scorers: a name, a unit, and a score for an answer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from gateway.evaluation.scoring.answer import MISSING, Answer
from pagantic.common.v1 import chunk_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.client import AsyncClient
from pagantic_common.domain.text.json_text import dump_json

MAX_NOTE_CHARS = 300


class Form(BaseModel):
    """The base class for the parts of a suite. Unknown names are rejected, and values are not converted."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ExpectedCall(Form):
    """An expected tool call. `arguments` are the arguments that the call must have; null accepts any arguments."""

    name: str
    arguments: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Score:
    """A score. `value` is None if the score is missing, and `note` states the reason. `confidence` is the judge's."""

    value: float | None
    note: str = ""
    confidence: float | None = None


@dataclass(frozen=True, slots=True)
class Expectation:
    """The expectations of a case. Missing parts are empty, and a missing `expected` is MISSING.

    `relevant` maps documents to their grades, which are above 0 for relevant documents.
    """

    input: str
    expected: Any = MISSING
    rubric: str = ""
    tools: Sequence[ExpectedCall] | None = None
    relevant: Mapping[str, float] | None = None

    @property
    def expected_text(self) -> str:
        """The expected answer as text."""
        return text_of(self.expected)


@dataclass(slots=True)
class Subject:
    """An answer to score, with its request and expectations. Chunks are retrieved once for all scorers."""

    expectation: Expectation
    request: execution_pb2.SystemRequest
    answer: Answer
    client: AsyncClient
    _chunks: Sequence[chunk_pb2.Chunk] | None = None

    async def chunks(self) -> Sequence[chunk_pb2.Chunk]:
        """Return the retrieved chunks, best first: from the plan's last step with chunks, or else by the policy."""
        if self._chunks is None:
            self._chunks = self._chunks_of_plan() or await self._retrieve()
        return self._chunks

    def _chunks_of_plan(self) -> Sequence[chunk_pb2.Chunk]:
        chunks: Sequence[chunk_pb2.Chunk] = ()
        for result in self.answer.response.step_results:
            chunks = result.output.context.chunks or chunks
        return chunks

    async def _retrieve(self) -> Sequence[chunk_pb2.Chunk]:
        if not self.request.HasField("context"):
            return ()
        return await self.client.retrieve(self.request.context, self.expectation.input)


class Scorer(Form):
    """The base class of all scorers.

    A score without a unit is from 0 to 1, and higher is better. A measure has a unit, and lower is better. `name` is
    the scorer's name in the results and defaults to its type.
    """

    unit: ClassVar[str] = ""
    type: str
    name: str = Field(default="", pattern=r"^[A-Za-z0-9._:-]{0,64}$")

    @property
    def label(self) -> str:
        """The name of the scorer's scores."""
        return self.name or self.type

    def lacks(self, _expectation: Expectation) -> str:
        """Return the part that a case lacks for this scorer, or an empty string if the case can be scored."""
        return ""

    def check(self, _expectation: Expectation) -> None:
        """Raise ValueError if the expectation is invalid, so that an answer could never meet it."""

    @abstractmethod
    async def score(self, subject: Subject) -> Score:
        """Return the score of an answer that did not fail."""


class TextScorer(Scorer):
    """Scores the text of an answer, or the part of its JSON value at `pointer`, for example `/person/age`."""

    pointer: str = Field(default="", pattern=r"^(/.*)?$")

    def found(self, answer: Answer) -> Any:
        """Return the part of the answer to score, or MISSING if the answer does not have it."""
        if self.pointer:
            return answer.part(self.pointer)
        return answer.text


class ExpectingScorer(TextScorer):
    """A scorer that needs an expected value."""

    def lacks(self, expectation: Expectation) -> str:
        """Return `expected` if the case lacks it."""
        if expectation.expected is MISSING:
            return "expected"
        return ""


async def score_of(scorer: Scorer, subject: Subject) -> Score:
    """Return the score of an answer; except in measures, a failed answer scores 0. Raises a service's PaganticError."""
    if subject.answer.error and not scorer.unit:
        return Score(0.0, f"the case failed: {subject.answer.error}")
    return await scorer.score(subject)


def text_of(value: Any) -> str:
    """Return a JSON value as text: a string unchanged, and an empty string for MISSING."""
    if value is MISSING:
        return ""
    if isinstance(value, str):
        return value
    return dump_json(value)


def same_json(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal. Numbers are compared by value, and true is not a number."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_json(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_json, one, other))
    return bool(one == other)
