"""pagantic.constraint.v1 <-> domain."""

from __future__ import annotations

from collections.abc import Iterable

from pagantic.constraint.v1 import constraint_service_pb2 as rpc
from pagantic.constraint.v1 import contract_pb2
from pagantic_common.codec.errors import failure_to_proto
from pagantic_common.codec.messages import usage_to_proto
from pagantic_common.codec.validation import guarantee_to_proto, stage_report_to_proto
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.json_text import dump_json
from pagantic_common.domain.usage import TokenUsage
from pagantic_common.domain.validation import Enforcement
from pagantic_common.grammar.problems import Problem
from services.constraint.core.compilation import Compiled, Source, SourceKind
from services.constraint.core.judgement import Verdict
from services.constraint.core.model import Contract, Rule
from services.constraint.core.work import GrammarReport


def source_from_proto(request: rpc.CompileRequest) -> Source | None:
    """Decode what to compile; None for a named grammar. Raises InvalidRequest when nothing is given."""
    match request.WhichOneof("source"):
        case "schema_json":
            return Source(SourceKind.SCHEMA, request.schema_json)
        case "grammar":
            return Source(SourceKind.GRAMMAR, request.grammar)
        case "regex":
            return Source(SourceKind.REGEX, request.regex)
        case "enum_list":
            return Source(SourceKind.VALUES, dump_json(list(request.enum_list.values)))
        case "grammar_name":
            return None
        case _:
            raise InvalidRequest("no source is given: one of schema_json, grammar, grammar_name, regex, enum_list")


def compiled_to_proto(compiled: Compiled, *, cached: bool) -> rpc.CompileResponse:
    """Encode a compiled source."""
    return rpc.CompileResponse(
        hash=compiled.hash,
        engine_text=compiled.engine_text,
        unsupported=[
            contract_pb2.UnsupportedKeyword(keyword=found.keyword, path=found.path) for found in compiled.unsupported
        ],
        cached=cached,
        warnings=compiled.warnings,
    )


def contract_from_proto(contract: contract_pb2.OutputContract) -> Contract:
    """Decode a contract; unset switches are on. Raises InvalidRequest for a number that no enum has."""
    if contract.schema_in_prompt not in contract_pb2.SchemaInPrompt.values():
        raise InvalidRequest(f"contract.schema_in_prompt {contract.schema_in_prompt} is not known")
    source = contract.WhichOneof("grammar_source")
    return Contract(
        schema_json=contract.schema_json,
        grammar=contract.grammar if source == "grammar" else None,
        grammar_name=contract.grammar_name if source == "grammar_name" else None,
        decoder_constraint=contract.decoder_constraint if contract.HasField("decoder_constraint") else True,
        repair_allowed=contract.repair_allowed if contract.HasField("repair_allowed") else True,
    )


def rules_from_proto(rules: Iterable[contract_pb2.Rule]) -> tuple[Rule, ...]:
    """Decode rules; raises InvalidRequest naming one without a condition."""
    return tuple(_rule_from_proto(rule) for rule in rules)


def _rule_from_proto(rule: contract_pb2.Rule) -> Rule:
    match rule.WhichOneof("condition"):
        case "expression":
            return Rule(rule.name, expression=rule.expression)
        case "builtin":
            return Rule(rule.name, kind=rule.builtin.kind, parameters_json=rule.builtin.parameters_json)
        case _:
            raise InvalidRequest(f"rule {rule.name!r}: no condition is given, neither expression nor builtin")


def enforcement_to_proto(found: Enforcement) -> rpc.EnforceResponse:
    """Encode what the pipeline found."""
    return rpc.EnforceResponse(
        valid=found.valid,
        output=found.output,
        structured_output_json=found.structured_output_json,
        stages=[stage_report_to_proto(report) for report in found.stages],
        guarantee=guarantee_to_proto(found.guarantee),
        error=failure_to_proto(found.failure) if found.failure else None,
        semantic_score=found.semantic_score,
        warnings=found.warnings,
        judge_usage=usage_to_proto(found.judge_usage) if found.judge_usage != TokenUsage() else None,
    )


def verdict_to_proto(verdict: Verdict) -> rpc.ValidateSemanticsResponse:
    """Encode a judge's verdict."""
    return rpc.ValidateSemanticsResponse(
        valid=verdict.valid,
        reason=verdict.reason,
        confidence=verdict.confidence,
        usage=usage_to_proto(verdict.usage),
    )


def grammar_report_to_proto(report: GrammarReport) -> rpc.ValidateGrammarResponse:
    """Encode what was found of a grammar."""
    return rpc.ValidateGrammarResponse(
        valid=not report.problems,
        problems=_problems_to_proto(report.problems),
        warnings=_problems_to_proto(report.warnings),
        text_matches=report.text_matches,
    )


def _problems_to_proto(problems: Iterable[Problem]) -> list[rpc.GrammarProblem]:
    return [rpc.GrammarProblem(line=found.line, column=found.column, message=found.message) for found in problems]
