"""What the pipeline takes and gives, as values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pagantic_common.domain.validation import Violation


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition on an output: a CEL expression, or a built-in kind with parameters."""

    name: str
    expression: str | None = None
    kind: str = ""
    parameters_json: str = ""


@dataclass(frozen=True, slots=True)
class Contract:
    """What an output must look like; at most one of grammar and grammar_name is set."""

    schema_json: str = ""
    grammar: str | None = None
    grammar_name: str | None = None
    decoder_constraint: bool = True
    repair_allowed: bool = True


@dataclass(frozen=True, slots=True)
class Limits:
    """What is refused before it can hurt the process."""

    max_schema_bytes: int
    max_schema_depth: int
    max_output_bytes: int


# (output, violations) -> the repaired output, or the same one. It must be importable by name, as it runs in a worker
# process; what it returns is validated like any output.
RepairStrategy = Callable[[str, Sequence[Violation]], str]
