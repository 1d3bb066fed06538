"""Output contracts and rules <-> proto."""

from __future__ import annotations

from pagantic.constraint.v1 import contract_pb2
from pagantic_common.domain.errors import InvalidRequest
from services.orchestrator.core.model.contract import OutputContract, Rule, SchemaInPrompt

_SCHEMA_IN_PROMPT = {
    contract_pb2.SCHEMA_IN_PROMPT_UNSPECIFIED: SchemaInPrompt.AUTO,
    contract_pb2.SCHEMA_IN_PROMPT_ON: SchemaInPrompt.ON,
    contract_pb2.SCHEMA_IN_PROMPT_OFF: SchemaInPrompt.OFF,
}


def output_to_proto(output: OutputContract) -> contract_pb2.OutputContract:
    """Encode an output contract for the constraint service."""
    contract = contract_pb2.OutputContract(
        schema_json=output.schema_json,
        decoder_constraint=output.decoder_constraint,
        repair_allowed=output.repair_allowed,
        strict_validation=output.strict_validation,
    )
    if output.grammar_name:
        contract.grammar_name = output.grammar_name
    elif output.grammar:
        contract.grammar = output.grammar
    return contract


def rule_to_proto(rule: Rule) -> contract_pb2.Rule:
    """Encode a rule for the constraint service."""
    if rule.builtin_kind:
        builtin = contract_pb2.BuiltinRule(kind=rule.builtin_kind, parameters_json=rule.builtin_parameters_json)
        return contract_pb2.Rule(name=rule.name, builtin=builtin)
    return contract_pb2.Rule(name=rule.name, expression=rule.expression)


def output_from_proto(output: contract_pb2.OutputContract) -> OutputContract:
    """Decode an output contract; unset switches are on. Raises InvalidRequest for an unknown schema_in_prompt."""
    schema_in_prompt = _SCHEMA_IN_PROMPT.get(output.schema_in_prompt)
    if schema_in_prompt is None:
        raise InvalidRequest(f"output.schema_in_prompt {output.schema_in_prompt} is not known")
    return OutputContract(
        schema_json=output.schema_json,
        grammar=output.grammar,
        grammar_name=output.grammar_name,
        decoder_constraint=output.decoder_constraint or not output.HasField("decoder_constraint"),
        repair_allowed=output.repair_allowed or not output.HasField("repair_allowed"),
        strict_validation=output.strict_validation or not output.HasField("strict_validation"),
        schema_in_prompt=schema_in_prompt,
    )


def rule_from_proto(rule: contract_pb2.Rule) -> Rule:
    """Decode a rule."""
    return Rule(
        name=rule.name,
        expression=rule.expression,
        builtin_kind=rule.builtin.kind,
        builtin_parameters_json=rule.builtin.parameters_json,
    )
