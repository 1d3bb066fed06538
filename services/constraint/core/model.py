"""Defines the inputs of the pipeline: rules, contracts and limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.domain.text.citations import CitationPolicy, schema_of
from pagantic_common.domain.validation import Violation


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition on an output. A valid rule has either a CEL expression or a built-in kind with parameters."""

    name: str
    expression: str | None = None
    kind: str | None = None
    parameters_json: str = ""


@dataclass(frozen=True, slots=True)
class Contract:
    """The required form of an output. At most one of `grammar` and `grammar_name` is set.

    `unknown` is empty, or names a field with its value if this version does not know the value.
    """

    schema_json: str = ""
    grammar: str | None = None
    grammar_name: str | None = None
    decoder_constraint: bool = True
    repair_allowed: bool = True
    unknown: str = ""
    citations: CitationPolicy | None = None

    @property
    def has_grammar(self) -> bool:
        """Whether the contract names or holds a grammar."""
        return self.grammar is not None or self.grammar_name is not None

    def check(self) -> None:
        """Raise InvalidRequest if the contract has an unknown value or its citations are invalid."""
        if self.unknown:
            raise InvalidRequest(f"contract.{self.unknown} is not known")
        if self.citations is None:
            return
        if self.schema_json or self.has_grammar:
            raise InvalidRequest("contract.citations stands alone: leave schema_json and the grammar empty")
        self.citations.check("contract.citations")

    @property
    def effective_schema_json(self) -> str:
        """The schema of the citations, if any, or else the contract's schema. Empty if there is no schema."""
        if self.citations is not None:
            return schema_of(self.citations)
        return self.schema_json


@dataclass(frozen=True, slots=True)
class Limits:
    """The maximum sizes of sources and outputs. Larger inputs are rejected before they can harm the process."""

    max_schema_bytes: int
    max_schema_depth: int
    max_output_bytes: int

    def check_source(self, text: str, kind: str) -> None:
        """Raise InvalidRequest (CONSTRAINT_TOO_COMPLEX) if a schema or grammar is too large."""
        _check_size(text, self.max_schema_bytes, kind)

    def check_output(self, text: str) -> None:
        """Raise InvalidRequest (CONSTRAINT_TOO_COMPLEX) if an output or document is too large."""
        _check_size(text, self.max_output_bytes, "output")


def _check_size(text: str, max_bytes: int, kind: str) -> None:
    size = len(text.encode())
    if size > max_bytes:
        raise InvalidRequest(
            f"the {kind} is too large: {size} bytes, at most {max_bytes} are taken",
            code=ErrorCode.CONSTRAINT_TOO_COMPLEX,
        )


# A repair strategy takes an output and its violations, and returns a repaired output or the same output. It must be
# importable by name, because it runs in a worker process. Its result is validated like any output.
RepairStrategy = Callable[[str, Sequence[Violation]], str]
