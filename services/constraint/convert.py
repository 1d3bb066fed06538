"""Converts between the messages of the constraint service and domain values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pagantic.constraint.v1 import constraint_service_pb2 as pb
from pagantic.constraint.v1 import contract_pb2
from pagantic_common.codec.citations import citations_from_proto
from pagantic_common.codec.errors import optional_failure_to_proto
from pagantic_common.codec.fields import decode_optional
from pagantic_common.codec.messages import optional_usage_to_proto, usage_to_proto
from pagantic_common.codec.validation import guarantee_to_proto, stage_report_to_proto
from pagantic_common.domain.validation import Enforcement
from pagantic_common.grammar.problems import Problem
from services.constraint.core.compilation import Compiled, Source, SourceKind
from services.constraint.core.grammars import GrammarReport
from services.constraint.core.judgement import Verdict
from services.constraint.core.model import Contract, Rule


def source_from_proto(request: pb.CompileRequest) -> Source | None:  # noqa: PLR0911 - an arm for each source
    """Decode a source. Returns None if the source is missing."""
    match request.WhichOneof("source"):
        case "schema_json":
            return Source(SourceKind.SCHEMA, request.schema_json)
        case "grammar":
            return Source(SourceKind.GRAMMAR, request.grammar)
        case "regex":
            return Source(SourceKind.REGEX, request.regex)
        case "enum_list":
            return Source.of_values(request.enum_list.values)
        case "grammar_name":
            return Source(SourceKind.NAMED_GRAMMAR, request.grammar_name)
        case "cited_sources":
            cited = request.cited_sources
            return Source.of_citations(citations_from_proto(cited.citations), cited.texts)
        case _:
            return None


def compiled_to_proto(compiled: Compiled, *, cached: bool) -> pb.CompileResponse:
    """Encode a compiled source."""
    return pb.CompileResponse(
        hash=compiled.hash,
        engine_text=compiled.engine_text,
        unsupported=[
            contract_pb2.UnsupportedKeyword(keyword=unsupported.keyword, path=unsupported.path)
            for unsupported in compiled.unsupported
        ],
        cached=cached,
        warnings=compiled.warnings,
    )


def contract_from_proto(contract: contract_pb2.OutputContract) -> Contract:
    """Decode a contract. Unset switches are on."""
    decoded = Contract(
        schema_json=contract.schema_json,
        decoder_constraint=not contract.HasField("decoder_constraint") or contract.decoder_constraint,
        repair_allowed=not contract.HasField("repair_allowed") or contract.repair_allowed,
        citations=decode_optional(contract, "citations", citations_from_proto),
    )
    if contract.schema_in_prompt not in contract_pb2.SchemaInPrompt.values():
        decoded = replace(decoded, unknown=f"schema_in_prompt {contract.schema_in_prompt}")
    match contract.WhichOneof("grammar_source"):
        case "grammar":
            return replace(decoded, grammar=contract.grammar)
        case "grammar_name":
            return replace(decoded, grammar_name=contract.grammar_name)
        case _:
            return decoded


def text_from_proto(request: pb.ValidateGrammarRequest) -> str | None:
    """Decode the text to match. Returns None if the text is missing."""
    if not request.HasField("text"):
        return None
    return request.text


def rules_from_proto(rules: Iterable[contract_pb2.Rule]) -> tuple[Rule, ...]:
    """Decode rules. A rule without a condition gets neither an expression nor a kind."""
    return tuple(_rule_from_proto(rule) for rule in rules)


def _rule_from_proto(rule: contract_pb2.Rule) -> Rule:
    match rule.WhichOneof("condition"):
        case "expression":
            return Rule(rule.name, expression=rule.expression)
        case "builtin":
            return Rule(rule.name, kind=rule.builtin.kind, parameters_json=rule.builtin.parameters_json)
        case _:
            return Rule(rule.name)


def enforcement_to_proto(enforcement: Enforcement) -> pb.EnforceResponse:
    """Encode the result of the pipeline."""
    return pb.EnforceResponse(
        valid=enforcement.valid,
        output=enforcement.output,
        structured_output_json=enforcement.structured_output_json,
        stages=[stage_report_to_proto(report) for report in enforcement.stages],
        guarantee=guarantee_to_proto(enforcement.guarantee),
        error=optional_failure_to_proto(enforcement.failure),
        semantic_score=enforcement.semantic_score,
        warnings=enforcement.warnings,
        judge_usage=optional_usage_to_proto(enforcement.judge_usage),
    )


def verdict_to_proto(verdict: Verdict) -> pb.ValidateSemanticsResponse:
    """Encode the judge's verdict."""
    return pb.ValidateSemanticsResponse(
        valid=verdict.valid,
        reason=verdict.reason,
        confidence=verdict.confidence,
        usage=usage_to_proto(verdict.usage),
    )


def grammar_report_to_proto(report: GrammarReport) -> pb.ValidateGrammarResponse:
    """Encode the report on a grammar."""
    return pb.ValidateGrammarResponse(
        valid=not report.problems,
        problems=_problems_to_proto(report.problems),
        warnings=_problems_to_proto(report.warnings),
        text_matches=report.text_matches,
    )


def _problems_to_proto(problems: Iterable[Problem]) -> list[pb.GrammarProblem]:
    return [
        pb.GrammarProblem(line=problem.line, column=problem.column, message=problem.message) for problem in problems
    ]
