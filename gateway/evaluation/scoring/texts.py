"""Scorers of texts and values: exact, label, regular expression, numeric, and JSON Schema."""

from __future__ import annotations

import math
import re
from functools import cached_property
from itertools import islice
from typing import Annotated, Any, Literal

import re2
from pydantic import Field, model_validator

from gateway.evaluation.scoring.answer import MISSING
from gateway.evaluation.scoring.scorer import (
    MAX_NOTE_CHARS,
    Expectation,
    ExpectingScorer,
    Score,
    Subject,
    TextScorer,
    same_json,
    text_of,
)
from pagantic_common.domain.text.json_text import dump_json, parse_json
from pagantic_common.grammar.json_schema import Schema
from pagantic_common.grammar.schema_problems import describe_problem
from pagantic_common.grammar.schema_validator import SchemaError, Validator, build_validator

MAX_REGEX_BYTES = 8 * 1024 * 1024
SHOWN_VIOLATIONS = 3
MAX_LABELS = 255
MAX_LABEL_CHARS = 200
_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d{1,3})?")


class Exact(ExpectingScorer):
    """Scores 1 if the answer equals the expected answer as text, ignoring space at the ends, or as a JSON value."""

    type: Literal["exact"] = "exact"
    ignore_case: bool = False

    async def score(self, subject: Subject) -> Score:
        """Compare the answer with the expected text or value."""
        expected, actual = subject.expectation.expected, self.found(subject.answer)
        if not isinstance(expected, str):
            if not self.pointer:
                actual = subject.answer.value
            return _yes_or_no(same_json(actual, expected), actual)
        texts = [expected.strip(), text_of(actual).strip()]
        if self.ignore_case:
            texts = [text.casefold() for text in texts]
        return _yes_or_no(actual is not MISSING and texts[0] == texts[1], actual)


class Label(ExpectingScorer):
    """Scores 1 if the label in the answer is the expected label.

    The answer's label is the last or, as `which` selects, the first of `labels` in the answer. Labels are whole words
    or phrases, and case does not matter. If a label contains another label, the longer label counts.
    """

    type: Literal["label"] = "label"
    labels: list[Annotated[str, Field(min_length=1, max_length=MAX_LABEL_CHARS)]] = Field(
        min_length=2, max_length=MAX_LABELS
    )
    which: Literal["first", "last"] = "last"

    def check(self, expectation: Expectation) -> None:
        """Raise ValueError if the expected label is not in `labels`."""
        if str(expectation.expected).casefold() not in {label.casefold() for label in self.labels}:
            raise ValueError(f"{expectation.expected!r} is none of the labels")

    async def score(self, subject: Subject) -> Score:
        """Compare the labels. An answer without a label is wrong."""
        named = self._labels.findall(text_of(self.found(subject.answer)))
        if not named:
            return Score(0.0, "the answer names no label")
        label = named[-1]
        if self.which == "first":
            label = named[0]
        return _yes_or_no(label.casefold() == str(subject.expectation.expected).casefold(), label)

    @cached_property
    def _labels(self) -> re.Pattern[str]:
        longest_first = sorted(self.labels, key=len, reverse=True)
        return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?!\w)", re.IGNORECASE)


class Regex(TextScorer):
    """Scores 1 if an RE2 regular expression matches anywhere in the answer or, with `full`, the whole answer.

    With `absent`, the score is 1 if the expression does not match.
    """

    type: Literal["regex"] = "regex"
    pattern: str = ""
    full: bool = False
    absent: bool = False

    @model_validator(mode="after")
    def _check_pattern(self) -> Regex:
        if self.pattern:
            _compile(self.pattern)
        return self

    def lacks(self, expectation: Expectation) -> str:
        """Return `expected (a regular expression)` if neither the scorer nor the case has a regular expression."""
        if self.pattern:
            return ""
        if not isinstance(expectation.expected, str):
            return "expected (a regular expression)"
        return ""

    def check(self, expectation: Expectation) -> None:
        """Raise ValueError if the expected text is not a regular expression."""
        if not self.pattern:
            _compile(str(expectation.expected))

    async def score(self, subject: Subject) -> Score:
        """Search the answer in time that is linear in its length."""
        value = self.found(subject.answer)
        if value is MISSING:
            return _yes_or_no(is_right=False, found=value)
        expression = _compile(self.pattern or str(subject.expectation.expected))
        search = expression.search
        if self.full:
            search = expression.fullmatch
        return _yes_or_no((search(text_of(value)) is not None) is not self.absent, value)


class Numeric(ExpectingScorer):
    """Scores 1 if the last or, as `which` selects, the first number in the answer is close to the expected number.

    The tolerance is the larger of `tolerance` and `relative_tolerance` times the larger number.
    """

    type: Literal["numeric"] = "numeric"
    tolerance: float = Field(default=1e-9, ge=0, allow_inf_nan=False)
    relative_tolerance: float = Field(default=0.0, ge=0, le=1)
    which: Literal["first", "last"] = "last"

    def lacks(self, expectation: Expectation) -> str:
        """Return `expected (a number)` if the case has no expected number."""
        if self._number_in(expectation.expected) is None:
            return "expected (a number)"
        return ""

    async def score(self, subject: Subject) -> Score:
        """Compare the numbers."""
        expected, actual = self._number_in(subject.expectation.expected), self._number_in(self.found(subject.answer))
        if expected is None or actual is None:
            return Score(0.0, "the answer has no number")
        is_close = math.isclose(expected, actual, rel_tol=self.relative_tolerance, abs_tol=self.tolerance)
        return _yes_or_no(is_close, actual)

    def _number_in(self, value: Any) -> float | None:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return _finite(value)
        if not isinstance(value, str):
            return None
        numbers = _NUMBER.findall(value)
        if not numbers:
            return None
        if self.which == "first":
            return _finite(numbers[0].replace(",", ""))
        return _finite(numbers[-1].replace(",", ""))


class SchemaScorer(TextScorer):
    """Scores 1 if the answer is JSON that satisfies the scorer's schema or, if it has none, the request's schema."""

    type: Literal["schema"] = "schema"
    json_schema: dict[str, Any] | bool | None = Field(default=None, alias="schema")

    @model_validator(mode="after")
    def _check_schema(self) -> SchemaScorer:
        if self.json_schema is not None:
            _ = self._own_validator
        return self

    @cached_property
    def _own_validator(self) -> Validator:
        if self.json_schema is None:
            raise ValueError("there is no schema")
        return _validator(self.json_schema)

    async def score(self, subject: Subject) -> Score:
        """Validate the value of the answer against the schema."""
        if self.json_schema is not None:
            validator = self._own_validator
        elif subject.request.output.schema_json:
            validator = _validator(parse_json(subject.request.output.schema_json))
        else:
            return Score(None, "neither the scorer nor the request has a schema")
        value = subject.answer.value
        if self.pointer:
            value = subject.answer.part(self.pointer)
        if value is MISSING:
            return Score(0.0, "the answer is not JSON")
        problems = [describe_problem(error) for error in islice(validator.iter_errors(value), SHOWN_VIOLATIONS)]
        return Score(float(not problems), "; ".join(problems)[:MAX_NOTE_CHARS])


def _validator(schema: Schema) -> Validator:
    try:
        return build_validator(schema)
    except SchemaError as error:
        raise ValueError(f"the schema {error}") from None


def _compile(pattern: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = MAX_REGEX_BYTES
    try:
        return re2.compile(pattern, options)
    except (re2.error, UnicodeEncodeError) as error:
        reason = error.args[0]
        if isinstance(reason, bytes):
            reason = reason.decode(errors="replace")
        raise ValueError(f"{pattern[:80]!r} is not a regular expression of RE2: {reason}") from None


def _finite(number: float | str) -> float | None:
    try:
        value = float(number)
    except (OverflowError, ValueError):
        return None
    if math.isfinite(value):
        return value
    return None


def _yes_or_no(is_right: bool, found: Any) -> Score:
    if is_right:
        return Score(1.0)
    if found is MISSING:
        return Score(0.0, "the answer is not JSON, or does not have this part")
    shown = found
    if not isinstance(found, str):
        shown = dump_json(found)
    return Score(0.0, f"found {shown[:MAX_NOTE_CHARS]!r}")
