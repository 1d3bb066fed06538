"""Defines the contract that an output must satisfy, and the policies of a request for retries and replays."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.ids import require_id, require_printable
from pagantic_common.domain.text.citations import CitationPolicy, schema_of


class SchemaInPrompt(StrEnum):
    """Whether the schema is shown to the model. AUTO omits a large schema."""

    AUTO = "AUTO"
    ON = "ON"
    OFF = "OFF"


@dataclass(frozen=True, slots=True)
class OutputContract:
    """The required form of an output, and its enforcement."""

    schema_json: str = ""
    grammar: str = ""
    grammar_name: str = ""
    decoder_constraint: bool = True
    repair_allowed: bool = True
    strict_validation: bool = True
    schema_in_prompt: SchemaInPrompt = SchemaInPrompt.AUTO
    citations: CitationPolicy | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the contract has neither a schema nor a grammar and requires no citations."""
        return not (self.schema_json or self.grammar or self.grammar_name or self.citations)

    @property
    def shown_schema_json(self) -> str:
        """The schema shown to the model: the citation schema if citations are required, or else the contract's schema.

        It is empty if there is no schema.
        """
        if self.citations is not None:
            return schema_of(self.citations)
        return self.schema_json


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition on the output: a CEL expression, or the kind and parameters of a built-in rule."""

    name: str
    expression: str = ""
    builtin_kind: str = ""
    builtin_parameters_json: str = ""


MAX_CHANGED_RESULTS = 128
MAX_STEP_CHARS = 200
MAX_CALL_ID_CHARS = 400
DEFAULT_MAX_RETRIES = 2
MAX_RETRIES = 10
MAX_BACKOFF_S = 60.0
MAX_WAITS_S = 300.0  # maximum total wait of all retries


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The number of retries, and the wait between attempts."""

    max_retries: int = DEFAULT_MAX_RETRIES
    backoff_s: float = 0.0
    is_exponential: bool = False

    @property
    def objection(self) -> str:
        """The reason that the policy is invalid, or an empty string if it is valid."""
        if not 0 <= self.max_retries <= MAX_RETRIES:
            return f"max_retries is {self.max_retries}: it must be between 0 and {MAX_RETRIES}"
        if not 0 <= self.backoff_s <= MAX_BACKOFF_S:
            return f"backoff is {self.backoff_s:g} s: it must be between 0 and {MAX_BACKOFF_S:g} s"
        waits_s = sum(self.wait_s(retry, 0.0) for retry in range(1, self.max_retries + 1))
        if waits_s > MAX_WAITS_S:
            return (
                f"backoff comes to {waits_s:g} s over {self.max_retries} retries: at most {MAX_WAITS_S:g} s are allowed"
            )
        return ""

    def wait_s(self, retry: int, draw: float) -> float:
        """Return the wait before retry number `retry`, which counts from 1. For number 0, the wait is 0.

        No wait is longer than MAX_BACKOFF_S. `draw`, in [0, 1), shortens an exponential wait by up to half, so that
        callers that failed simultaneously retry at different times.
        """
        if retry == 0:
            return 0.0
        growth = 1.0
        if self.is_exponential:
            growth = 2 ** (retry - 1) * (1 - draw / 2)
        return min(MAX_BACKOFF_S, self.backoff_s * growth)


class ReplayTools(StrEnum):
    """Whether a replay uses the recorded tool results or calls the tools."""

    RECORDED = "RECORDED"
    LIVE = "LIVE"


@dataclass(frozen=True, slots=True)
class ChangedResult:
    """A changed result of a recorded call."""

    call_id: str
    result: str
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class ReplayPolicy:
    """The policy of a replay, which runs a recorded execution again from a step.

    If `from_step` is empty, the changes determine the step.
    """

    request_id: str
    from_step: str = ""
    results: tuple[ChangedResult, ...] = ()
    tools: ReplayTools = ReplayTools.RECORDED

    def check(self) -> None:
        """Raise InvalidRequest if a name is malformed, or if there are too many results."""
        require_id("replay.request_id", self.request_id)
        require_printable("replay.from_step", self.from_step, MAX_STEP_CHARS)
        if len(self.results) > MAX_CHANGED_RESULTS:
            raise InvalidRequest(
                f"replay.tool_results has {len(self.results)} entries, at most {MAX_CHANGED_RESULTS} are taken"
            )
        for call_id, count in Counter(result.call_id for result in self.results).items():
            require_printable("replay.tool_results.tool_call_id", call_id, MAX_CALL_ID_CHARS)
            if count > 1:
                raise InvalidRequest(f"replay.tool_results has {count} results of the call {call_id!r}: send one")
