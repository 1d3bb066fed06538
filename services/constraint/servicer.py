"""ConstraintService: decode, call the app, encode."""

from __future__ import annotations

from typing import Any

import grpc

from pagantic.constraint.v1 import constraint_service_pb2 as rpc
from pagantic.constraint.v1 import constraint_service_pb2_grpc
from pagantic_common.codec.validation import violation_to_proto
from services.constraint import convert
from services.constraint.app.constraints import Constraints

Context = grpc.aio.ServicerContext[Any, Any]


class ConstraintServicer(constraint_service_pb2_grpc.ConstraintServiceServicer):
    """The rpcs over the use-cases."""

    def __init__(self, constraints: Constraints) -> None:
        self._constraints = constraints

    async def Compile(self, request: rpc.CompileRequest, context: Context) -> rpc.CompileResponse:
        """Compile a source."""
        source = convert.source_from_proto(request)
        if source is None:
            compiled, cached = await self._constraints.compile_named(request.grammar_name)
        else:
            compiled, cached = await self._constraints.compile(source)
        return convert.compiled_to_proto(compiled, cached=cached)

    async def Enforce(self, request: rpc.EnforceRequest, context: Context) -> rpc.EnforceResponse:
        """Run the pipeline."""
        found = await self._constraints.enforce(
            request.output,
            convert.contract_from_proto(request.contract),
            convert.rules_from_proto(request.rules),
            request.semantic_intent,
            decoder_enforced=request.decoder_enforced,
            judge_model=request.judge_model,
        )
        return convert.enforcement_to_proto(found)

    async def ValidateGrammar(
        self, request: rpc.ValidateGrammarRequest, context: Context
    ) -> rpc.ValidateGrammarResponse:
        """Check a grammar."""
        text = request.text if request.HasField("text") else None
        return convert.grammar_report_to_proto(await self._constraints.check_grammar(request.grammar, text))

    async def ValidateJson(self, request: rpc.ValidateJsonRequest, context: Context) -> rpc.ValidateJsonResponse:
        """Check JSON."""
        message = await self._constraints.check_json(request.text)
        return rpc.ValidateJsonResponse(valid=not message, message=message)

    async def RepairJson(self, request: rpc.RepairJsonRequest, context: Context) -> rpc.RepairJsonResponse:
        """Repair JSON."""
        result = await self._constraints.repair(request.text)
        return rpc.RepairJsonResponse(text=result.text, valid=result.valid, level=result.level, repairs=result.repairs)

    async def NormalizeEnums(self, request: rpc.NormalizeEnumsRequest, context: Context) -> rpc.NormalizeEnumsResponse:
        """Normalize enums."""
        text, changed = await self._constraints.normalize(request.document_json, request.schema_json)
        return rpc.NormalizeEnumsResponse(document_json=text, changed_paths=changed)

    async def ValidateSchema(self, request: rpc.ValidateSchemaRequest, context: Context) -> rpc.ValidateSchemaResponse:
        """Check a document."""
        found = await self._constraints.check_schema(
            request.document_json, request.schema_json, ignore_formats=request.ignore_formats
        )
        return rpc.ValidateSchemaResponse(
            valid=not found.violations, violations=map(violation_to_proto, found.violations), warnings=found.warnings
        )

    async def CompileRules(self, request: rpc.CompileRulesRequest, context: Context) -> rpc.CompileRulesResponse:
        """Check rules alone."""
        await self._constraints.compile_rules(convert.rules_from_proto(request.rules), request.schema_json)
        return rpc.CompileRulesResponse()

    async def ValidateRules(self, request: rpc.ValidateRulesRequest, context: Context) -> rpc.ValidateRulesResponse:
        """Check rules."""
        violations = await self._constraints.check_rules(request.output, convert.rules_from_proto(request.rules))
        return rpc.ValidateRulesResponse(valid=not violations, violations=map(violation_to_proto, violations))

    async def ValidateSemantics(
        self, request: rpc.ValidateSemanticsRequest, context: Context
    ) -> rpc.ValidateSemanticsResponse:
        """Ask the judge."""
        verdict = await self._constraints.check_semantics(request.output, request.intent, request.judge_model)
        return convert.verdict_to_proto(verdict)
