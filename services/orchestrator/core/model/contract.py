"""Defines the contract and the rules that an output must satisfy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pagantic_common.domain.text.citations import CitationPolicy, schema_of


class SchemaInPrompt(StrEnum):
    """Whether the schema is shown to the model. AUTO leaves out a large schema."""

    AUTO = "AUTO"
    ON = "ON"
    OFF = "OFF"


@dataclass(frozen=True, slots=True)
class OutputContract:
    """The required form of an output, and how it is enforced."""

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
