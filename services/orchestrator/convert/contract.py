"""Converts output contracts, rules, and the policies of retries, votes and replays to and from proto."""

from __future__ import annotations

from pagantic.constraint.v1 import contract_pb2
from pagantic.orchestrator.v1 import execution_pb2, plan_pb2
from pagantic_common.codec.citations import citations_from_proto, citations_to_proto
from pagantic_common.codec.fields import EnumCodec, decode_optional, encode_optional
from pagantic_common.codec.messages import duration_from_proto, duration_to_proto
from pagantic_common.domain.errors import InvalidRequest
from services.orchestrator.core.model.contract import (
    DEFAULT_MAX_RETRIES,
    ChangedResult,
    OutputContract,
    ReplayPolicy,
    ReplayTools,
    RetryPolicy,
    Rule,
    SchemaInPrompt,
)
from services.orchestrator.core.model.voting import DEFAULT_REPLICAS, Strategy, Voting

_STRATEGIES = EnumCodec(execution_pb2.VotingStrategy, Strategy, "VOTING_STRATEGY_", unknown=None)
_REPLAY_TOOLS = EnumCodec(execution_pb2.ReplayTools, ReplayTools, "REPLAY_TOOLS_", unknown=None)
_BACKOFF_KINDS = frozenset(plan_pb2.BackoffKind.values())
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
        citations=encode_optional(output.citations, citations_to_proto),
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
    """Decode an output contract. Unset switches count as on.

    Raises InvalidRequest if `schema_in_prompt` is unknown.
    """
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
        citations=decode_optional(output, "citations", citations_from_proto),
    )


def rule_from_proto(rule: contract_pb2.Rule) -> Rule:
    """Decode a rule."""
    return Rule(
        name=rule.name,
        expression=rule.expression,
        builtin_kind=rule.builtin.kind,
        builtin_parameters_json=rule.builtin.parameters_json,
    )


def retry_from_proto(retry: plan_pb2.RetryPolicy) -> RetryPolicy:
    """Decode a retry policy. Raises InvalidRequest if the kind of backoff is unknown."""
    if retry.kind not in _BACKOFF_KINDS:
        raise InvalidRequest(f"retry.kind {retry.kind} is not known")
    max_retries = DEFAULT_MAX_RETRIES
    if retry.HasField("max_retries"):
        max_retries = retry.max_retries
    return RetryPolicy(
        max_retries=max_retries,
        backoff_s=duration_from_proto(retry.backoff),
        is_exponential=retry.kind == plan_pb2.BACKOFF_KIND_EXPONENTIAL,
    )


def retry_to_proto(retry: RetryPolicy) -> plan_pb2.RetryPolicy:
    """Encode a retry policy."""
    kind = plan_pb2.BACKOFF_KIND_FIXED
    if retry.is_exponential:
        kind = plan_pb2.BACKOFF_KIND_EXPONENTIAL
    return plan_pb2.RetryPolicy(max_retries=retry.max_retries, backoff=duration_to_proto(retry.backoff_s), kind=kind)


def voting_from_proto(voting: execution_pb2.Voting) -> Voting:
    """Decode a voting policy. Raises InvalidRequest if the strategy is unknown."""
    strategy = _STRATEGIES.from_proto(voting.strategy)
    if strategy is None and voting.strategy != execution_pb2.VOTING_STRATEGY_UNSPECIFIED:
        raise InvalidRequest(f"voting.strategy {voting.strategy} is not known")
    return Voting(
        n=voting.n or DEFAULT_REPLICAS,
        strategy=strategy or Strategy.MAJORITY,
        min_agreement=voting.min_agreement,
        early_stop=voting.early_stop,
    )


def replay_from_proto(replay: execution_pb2.Replay) -> ReplayPolicy:
    """Decode a replay policy. Raises InvalidRequest if the value of `tools` is unknown."""
    tools = _REPLAY_TOOLS.from_proto(replay.tools)
    if tools is None and replay.tools != execution_pb2.REPLAY_TOOLS_UNSPECIFIED:
        raise InvalidRequest(f"replay.tools {replay.tools} is not known")
    results = tuple(
        ChangedResult(change.tool_call_id, change.result, change.is_error) for change in replay.tool_results
    )
    return ReplayPolicy(replay.request_id, replay.from_step, results, tools or ReplayTools.RECORDED)
