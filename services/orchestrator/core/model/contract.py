"""Contracts and rules for an output."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class SchemaInPrompt(StrEnum):
    """Whether the model reads the schema; AUTO leaves out a large one."""

    AUTO = "AUTO"
    ON = "ON"
    OFF = "OFF"


@dataclass(frozen=True, slots=True)
class OutputContract:
    """The form of an output, and its enforcement."""

    schema_json: str = ""
    grammar: str = ""
    grammar_name: str = ""
    decoder_constraint: bool = True
    repair_allowed: bool = True
    strict_validation: bool = True
    schema_in_prompt: SchemaInPrompt = SchemaInPrompt.AUTO

    @property
    def is_empty(self) -> bool:
        """Whether it has neither a schema nor a grammar."""
        return not (self.schema_json or self.grammar or self.grammar_name)


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition on the output: a CEL expression, or the kind and parameters of a built-in one."""

    name: str
    expression: str = ""
    builtin_kind: str = ""
    builtin_parameters_json: str = ""
