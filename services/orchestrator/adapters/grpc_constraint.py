"""Implements ConstraintPort over gRPC."""

from __future__ import annotations

from collections.abc import Sequence

import grpc

from pagantic.constraint.v1 import constraint_service_pb2, constraint_service_pb2_grpc, contract_pb2
from pagantic_common.codec.citations import citations_to_proto
from pagantic_common.codec.errors import failure_from_proto
from pagantic_common.codec.fields import decode_optional, optional
from pagantic_common.codec.messages import usage_from_proto
from pagantic_common.codec.validation import guarantee_from_proto, stage_report_from_proto
from pagantic_common.domain.validation import Enforcement
from pagantic_common.rpc.peer import Credentials, Peer, pass_on
from services.orchestrator.convert.contract import output_to_proto, rule_to_proto
from services.orchestrator.core.model.contract import OutputContract
from services.orchestrator.core.model.request import Request
from services.orchestrator.ports.services import CompiledConstraint


class GrpcConstraint:
    """Client of the constraint service."""

    def __init__(self, channel: grpc.aio.Channel, patience_s: float, credentials: Credentials = pass_on) -> None:
        self._stub: constraint_service_pb2_grpc.ConstraintServiceAsyncStub = (
            constraint_service_pb2_grpc.ConstraintServiceStub(channel)
        )
        self._peer = Peer("constraint", channel, patience_s=patience_s, credentials=credentials)

    async def compile(self, output: OutputContract, sources: Sequence[str] = ()) -> CompiledConstraint:
        """Compile the grammar, the citations or the schema of a contract.

        If a contract has both a grammar and a schema, the grammar constrains decoding and the schema is checked later.
        """
        request = constraint_service_pb2.CompileRequest()
        has_grammar = bool(output.grammar or output.grammar_name)
        if output.grammar_name:
            request.grammar_name = output.grammar_name
        elif output.grammar:
            request.grammar = output.grammar
        elif output.citations is not None:
            request.cited_sources.texts.extend(sources)
            request.cited_sources.citations.CopyFrom(citations_to_proto(output.citations))
        else:
            request.schema_json = output.schema_json
        compiled = await self._peer.call_unary(self._stub.Compile, request)
        unsupported = tuple(_place_of(feature) for feature in compiled.unsupported)
        is_fully_enforced = not has_grammar and not unsupported
        return CompiledConstraint(compiled.engine_text, is_fully_enforced, unsupported)

    async def compile_rules(self, request: Request) -> None:
        """Ask the service to check the request's rules before there is any output."""
        await self._peer.call_unary(
            self._stub.CompileRules,
            constraint_service_pb2.CompileRulesRequest(
                rules=[rule_to_proto(rule) for rule in request.rules], schema_json=request.output.schema_json
            ),
        )

    async def enforce(
        self, text: str, request: Request, *, is_decoder_enforced: bool, sources: Sequence[str] = ()
    ) -> Enforcement:
        """Run the constraint pipeline that the request declares, with `text` as the output."""
        reply = await self._peer.call_unary(
            self._stub.Enforce,
            constraint_service_pb2.EnforceRequest(
                output=text,
                contract=output_to_proto(request.output),
                rules=[rule_to_proto(rule) for rule in request.rules],
                semantic_intent=request.semantic_intent,
                judge_model=request.hints.model,
                decoder_enforced=is_decoder_enforced,
                sources=sources,
            ),
        )
        return Enforcement(
            valid=reply.valid,
            output=reply.output,
            structured_output_json=reply.structured_output_json,
            stages=tuple(stage_report_from_proto(stage) for stage in reply.stages),
            guarantee=guarantee_from_proto(reply.guarantee),
            failure=decode_optional(reply, "error", failure_from_proto),
            semantic_score=optional(reply, "semantic_score"),
            judge_usage=usage_from_proto(reply.judge_usage),
            warnings=tuple(reply.warnings),
        )


def _place_of(unsupported: contract_pb2.UnsupportedKeyword) -> str:
    """Return a keyword and its path, such as `uniqueItems at /properties/tags`.

    The path is omitted for a keyword at the root.
    """
    keyword = unsupported.keyword
    place = unsupported.path.removesuffix(f"/{keyword}")
    if not place:
        return keyword
    return f"{keyword} at {place}"
