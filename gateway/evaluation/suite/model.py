"""A suite as data: cases, the settings of their requests, and the scorers of their answers."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from gateway.evaluation.scoring.answer import MISSING
from gateway.evaluation.scoring.scorer import Expectation, ExpectedCall, Form, Scorer
from gateway.evaluation.scoring.scorers import Scorers
from gateway.written.errors import WrittenError

MAX_CASES = 10_000
# Names are short, because a request id also contains the ids of an evaluation and of a scorer.
MAX_NAME_CHARS = 45
MAX_TAGS = 32


class SuiteError(WrittenError):
    """Raised if a suite or a case is invalid. The message names the position and the reason."""


class InputMessage(Form):
    """A message of a case's input."""

    role: Literal["system", "user", "assistant"]
    content: str


def _named(written: Any) -> Any:
    if isinstance(written, str):
        return {"name": written}
    return written


def _graded(written: Any) -> Any:
    if isinstance(written, list):
        return dict.fromkeys(written, 1.0)
    return written


Name = Annotated[str, Field(pattern=rf"^[A-Za-z0-9._:-]{{1,{MAX_NAME_CHARS}}}$")]
Tag = Annotated[str, Field(min_length=1, max_length=100)]


class Case(Form):
    """An input and the expectations of its answer.

    `request` has fields of SystemRequest as proto JSON, which override the suite's fields. `tools` are the expected
    calls, and `relevant` maps the relevant documents to their grades.
    """

    name: Name
    input: str | list[InputMessage] = ""
    expected: Any = None
    rubric: str = ""
    tools: list[Annotated[ExpectedCall, BeforeValidator(_named)]] | None = None
    relevant: Annotated[dict[str, float], BeforeValidator(_graded)] | None = None
    tags: Annotated[list[Tag], Field(max_length=MAX_TAGS)] = Field(default_factory=list)
    request: dict[str, Any] = Field(default_factory=dict)
    scorers: Scorers = Field(default_factory=list)

    @property
    def input_text(self) -> str:
        """The input as text: the input itself, or the content of its last message."""
        if isinstance(self.input, str):
            return self.input
        return self.input[-1].content if self.input else ""

    @property
    def expectation(self) -> Expectation:
        """The expectations for the scorers."""
        expected = MISSING
        if "expected" in self.model_fields_set:
            expected = self.expected
        return Expectation(self.input_text, expected, self.rubric, self.tools, self.relevant)

    @property
    def key(self) -> str:
        """A hash of the input and expectations that pairs the results of two evaluations."""
        content = self.model_dump(mode="json", include={"input", "expected", "rubric", "tools", "relevant"})
        return hash_of(content)[:16]


class Suite(Form):
    """Cases with the settings and scorers that they share."""

    name: Name = "suite"
    request: dict[str, Any] = Field(default_factory=dict)
    scorers: Scorers = Field(default_factory=list)
    cases: Annotated[list[Case], Field(max_length=MAX_CASES)] = Field(default_factory=list)

    @property
    def hash(self) -> str:
        """The SHA-256 of the suite as canonical JSON, in hexadecimal."""
        return hash_of(self.as_json())

    def as_json(self) -> dict[str, Any]:
        """Return the suite as JSON that `suite_of` can read."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)

    def scorers_of(self, case: Case) -> list[Scorer]:
        """Return the scorers of a case: its own scorers, and the suite's scorers whose requirements it meets."""
        own = {scorer.label: scorer for scorer in case.scorers}
        shared = [scorer for scorer in self.scorers if scorer.label not in own]
        return [*(scorer for scorer in shared if not scorer.lacks(case.expectation)), *own.values()]

    def all_scorers(self) -> dict[str, Scorer]:
        """Return every scorer that scores at least one case, by its label."""
        return {scorer.label: scorer for case in self.cases for scorer in self.scorers_of(case)}


def hash_of(value: Any) -> str:
    """Return the SHA-256 of a JSON value in hexadecimal. The order of keys does not matter."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
