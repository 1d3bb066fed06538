"""Serves ConstraintService over gRPC: decodes each request, calls the use case and encodes the response."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import grpc

from pagantic.constraint.v1 import constraint_service_pb2 as pb
from pagantic.constraint.v1 import constraint_service_pb2_grpc
from pagantic_common.codec.validation import violation_to_proto
from pagantic_common.domain.calls.principal import Scope
from pagantic_common.domain.validation import StageOutcome, StageReport
from pagantic_common.telemetry.names import STAGE, STAGE_OUTCOME
from pagantic_common.telemetry.tracing import record_span
from services.constraint import convert
from services.constraint.app.constraints import Constraints

Context = grpc.aio.ServicerContext[Any, Any]

# The scope that each method requires.
SCOPES: Mapping[str, Scope] = MappingProxyType(
    {
        "Compile": Scope.EXECUTE,
        "Enforce": Scope.EXECUTE,
        "ValidateGrammar": Scope.EXECUTE,
        "ValidateJson": Scope.EXECUTE,
        "RepairJson": Scope.EXECUTE,
        "NormalizeEnums": Scope.EXECUTE,
        "ValidateSchema": Scope.EXECUTE,
        "CompileRules": Scope.EXECUTE,
        "ValidateRules": Scope.EXECUTE,
        "ValidateSemantics": Scope.EXECUTE,
    }
)


class ConstraintServicer(constraint_service_pb2_grpc.ConstraintServiceServicer):
    """Serves compilation, the whole pipeline and its single stages."""

    def __init__(self, constraints: Constraints) -> None:
        self._constraints = constraints

    async def Compile(self, request: pb.CompileRequest, context: Context) -> pb.CompileResponse:
        compiled, cached = await self._constraints.compile(convert.source_from_proto(request))
        return convert.compiled_to_proto(compiled, cached=cached)

    async def Enforce(self, request: pb.EnforceRequest, context: Context) -> pb.EnforceResponse:

        enforcement = await self._constraints.enforce(
            request.output,
            convert.contract_from_proto(request.contract),
            convert.rules_from_proto(request.rules),
            request.semantic_intent,
            is_decoder_enforced=request.decoder_enforced,
            judge_model=request.judge_model,
            sources=tuple(request.sources),
        )
        record_stages(enforcement.stages)
        return convert.enforcement_to_proto(enforcement)

    async def ValidateGrammar(self, request: pb.ValidateGrammarRequest, context: Context) -> pb.ValidateGrammarResponse:
        text = convert.text_from_proto(request)
        return convert.grammar_report_to_proto(await self._constraints.check_grammar(request.grammar, text))

    async def ValidateJson(self, request: pb.ValidateJsonRequest, context: Context) -> pb.ValidateJsonResponse:

        message = await self._constraints.check_json(request.text)
        return pb.ValidateJsonResponse(valid=not message, message=message)

    async def RepairJson(self, request: pb.RepairJsonRequest, context: Context) -> pb.RepairJsonResponse:

        result = await self._constraints.repair(request.text)
        return pb.RepairJsonResponse(text=result.text, valid=result.valid, level=result.level, repairs=result.repairs)

    async def NormalizeEnums(self, request: pb.NormalizeEnumsRequest, context: Context) -> pb.NormalizeEnumsResponse:

        text, changed = await self._constraints.normalize(request.document_json, request.schema_json)
        return pb.NormalizeEnumsResponse(document_json=text, changed_paths=changed)

    async def ValidateSchema(self, request: pb.ValidateSchemaRequest, context: Context) -> pb.ValidateSchemaResponse:

        report = await self._constraints.check_schema(
            request.document_json, request.schema_json, ignore_formats=request.ignore_formats
        )
        return pb.ValidateSchemaResponse(
            valid=not report.violations, violations=map(violation_to_proto, report.violations), warnings=report.warnings
        )

    async def CompileRules(self, request: pb.CompileRulesRequest, context: Context) -> pb.CompileRulesResponse:

        await self._constraints.compile_rules(convert.rules_from_proto(request.rules), request.schema_json)
        return pb.CompileRulesResponse()

    async def ValidateRules(self, request: pb.ValidateRulesRequest, context: Context) -> pb.ValidateRulesResponse:

        violations = await self._constraints.check_rules(request.output, convert.rules_from_proto(request.rules))
        return pb.ValidateRulesResponse(valid=not violations, violations=map(violation_to_proto, violations))

    async def ValidateSemantics(
        self, request: pb.ValidateSemanticsRequest, context: Context
    ) -> pb.ValidateSemanticsResponse:

        verdict = await self._constraints.check_semantics(request.output, request.intent, request.judge_model)
        return convert.verdict_to_proto(verdict)


def record_stages(stages: Sequence[StageReport]) -> None:
    """Record a span for each stage, as if the stages ran one after the other and ended now.

    The stages ran in another process, so their actual start times are unknown here.
    """
    ended_s = time.monotonic()
    for report in reversed(stages):
        if report.outcome is StageOutcome.SKIPPED:
            continue
        began_s = ended_s - report.duration_s
        attributes = {STAGE: report.stage.value, STAGE_OUTCOME: report.outcome.value}
        record_span(f"stage {report.stage.value}", began_s, ended_s, attributes)
        ended_s = began_s
