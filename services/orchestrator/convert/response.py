"""Converts responses and their parts to and from proto."""

from __future__ import annotations

from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.codec.errors import (
    error_code_from_proto,
    error_code_to_proto,
    failure_from_proto,
    failure_to_proto,
)
from pagantic_common.codec.fields import EnumCodec, decode_optional, encode_optional, optional
from pagantic_common.codec.messages import (
    duration_from_proto,
    duration_to_proto,
    tool_call_from_proto,
    tool_call_to_proto,
    usage_from_proto,
    usage_to_proto,
)
from pagantic_common.codec.validation import (
    guarantee_from_proto,
    guarantee_to_proto,
    stage_report_from_proto,
    stage_report_to_proto,
    violation_from_proto,
    violation_to_proto,
)
from pagantic_common.domain.errors import InvalidRequest
from services.orchestrator.convert.decision import decision_from_proto, decision_to_proto
from services.orchestrator.convert.inference import (
    finish_reason_to_proto,
    logprob_from_proto,
    logprob_to_proto,
    set_finish_reason_from_proto,
)
from services.orchestrator.convert.plan import (
    plan_from_proto,
    plan_to_proto,
    result_from_proto,
    result_to_proto,
    warning_from_proto,
    warning_to_proto,
)
from services.orchestrator.core.model.request import ExperimentVariant
from services.orchestrator.core.model.response import (
    Candidate,
    Citation,
    ConfidenceSource,
    Response,
    ToolCallRecord,
    ValidationReport,
)
from services.orchestrator.core.turn.run import State

_STATE_PREFIX = "LIFECYCLE_STATE_"
_STATES = EnumCodec(execution_pb2.LifecycleState, State, _STATE_PREFIX, unknown=None)
_SOURCES = EnumCodec(
    execution_pb2.ConfidenceSource, ConfidenceSource, "CONFIDENCE_SOURCE_", unknown=ConfidenceSource.UNSPECIFIED
)


def response_to_proto(response: Response) -> execution_pb2.SystemResponse:
    """Encode a response."""
    return execution_pb2.SystemResponse(
        request_id=response.request_id,
        session_id=response.session_id,
        content=response.content,
        structured_output_json=response.structured_output_json,
        tool_calls_made=[tool_record_to_proto(record) for record in response.tool_calls_made],
        confidence=response.confidence,
        confidence_source=_SOURCES.to_proto(response.confidence_source),
        candidates=[candidate_to_proto(candidate) for candidate in response.candidates],
        step_results=[result_to_proto(result) for result in response.step_results],
        token_usage=usage_to_proto(response.usage),
        finish_reason=finish_reason_to_proto(response.finish_reason),
        reasoning=response.reasoning,
        warnings=[warning_to_proto(warning) for warning in response.warnings],
        logprobs=[logprob_to_proto(logprob) for logprob in response.logprobs],
        effective_seed=response.seed,
        plan=encode_optional(response.plan, plan_to_proto),
        tool_calls=[tool_call_to_proto(call) for call in response.tool_calls],
        validation=encode_optional(response.validation, _validation_to_proto),
        error=encode_optional(response.failure, failure_to_proto),
        citations=[_citation_to_proto(citation) for citation in response.citations],
        not_in_sources=response.not_in_sources,
        decisions=[decision_to_proto(decision) for decision in response.decisions],
        variant=encode_optional(response.variant, variant_to_proto),
        earlier_content=response.earlier_content,
        matched_stop=response.matched_stop,
    )


def response_from_proto(encoded: execution_pb2.SystemResponse) -> Response:
    """Decode a response."""
    return Response(
        request_id=encoded.request_id,
        session_id=encoded.session_id,
        content=encoded.content,
        structured_output_json=encoded.structured_output_json,
        tool_calls_made=tuple(_record_from_proto(record) for record in encoded.tool_calls_made),
        confidence=optional(encoded, "confidence"),
        confidence_source=_SOURCES.from_proto(encoded.confidence_source),
        validation=decode_optional(encoded, "validation", _validation_from_proto),
        candidates=tuple(_candidate_from_proto(candidate) for candidate in encoded.candidates),
        step_results=tuple(result_from_proto(result) for result in encoded.step_results),
        usage=usage_from_proto(encoded.token_usage),
        failure=decode_optional(encoded, "error", failure_from_proto),
        finish_reason=set_finish_reason_from_proto(encoded.finish_reason),
        reasoning=encoded.reasoning,
        warnings=tuple(warning_from_proto(warning) for warning in encoded.warnings),
        logprobs=tuple(logprob_from_proto(logprob) for logprob in encoded.logprobs),
        seed=optional(encoded, "effective_seed"),
        plan=decode_optional(encoded, "plan", plan_from_proto),
        tool_calls=tuple(tool_call_from_proto(call) for call in encoded.tool_calls),
        citations=tuple(_citation_from_proto(citation) for citation in encoded.citations),
        not_in_sources=optional(encoded, "not_in_sources"),
        decisions=tuple(decision_from_proto(decision) for decision in encoded.decisions),
        variant=decode_optional(encoded, "variant", variant_from_proto),
        earlier_content=encoded.earlier_content,
        matched_stop=encoded.matched_stop,
    )


def _citation_to_proto(citation: Citation) -> execution_pb2.Citation:
    return execution_pb2.Citation(
        claim=citation.claim,
        source=citation.source,
        document=citation.document,
        page=citation.page,
        start=citation.start,
        end=citation.end,
        quote=citation.quote,
        guarantee=guarantee_to_proto(citation.guarantee),
    )


def _citation_from_proto(citation: execution_pb2.Citation) -> Citation:
    return Citation(
        claim=citation.claim,
        source=citation.source,
        document=citation.document,
        page=citation.page,
        start=citation.start,
        end=citation.end,
        quote=citation.quote,
        guarantee=guarantee_from_proto(citation.guarantee),
    )


def candidate_to_proto(candidate: Candidate) -> execution_pb2.VoteCandidate:
    """Encode the output of a replica."""
    return execution_pb2.VoteCandidate(
        replica_index=candidate.replica_index,
        content=candidate.content,
        structured_output_json=candidate.structured_output_json,
        votes=candidate.votes,
        error=encode_optional(candidate.failure, failure_to_proto),
    )


def _candidate_from_proto(candidate: execution_pb2.VoteCandidate) -> Candidate:
    return Candidate(
        replica_index=candidate.replica_index,
        content=candidate.content,
        structured_output_json=candidate.structured_output_json,
        votes=candidate.votes,
        failure=decode_optional(candidate, "error", failure_from_proto),
    )


def tool_record_to_proto(record: ToolCallRecord) -> execution_pb2.ToolCallRecord:
    """Encode the record of a tool call that ran."""
    return execution_pb2.ToolCallRecord(
        id=record.id,
        name=record.name,
        arguments_json=record.arguments_json,
        result=record.result,
        is_error=record.is_error,
        error_code=error_code_to_proto(record.error_code),
        duration=duration_to_proto(record.duration_s),
    )


def _record_from_proto(record: execution_pb2.ToolCallRecord) -> ToolCallRecord:
    return ToolCallRecord(
        id=record.id,
        name=record.name,
        arguments_json=record.arguments_json,
        result=record.result,
        is_error=record.is_error,
        error_code=error_code_from_proto(record.error_code),
        duration_s=duration_from_proto(record.duration),
    )


def _validation_to_proto(report: ValidationReport) -> execution_pb2.ValidationReport:
    return execution_pb2.ValidationReport(
        checks_passed=report.checks_passed,
        checks_failed=report.checks_failed,
        repair_attempts=report.repair_attempts,
        remaining_violations=[violation_to_proto(violation) for violation in report.remaining_violations],
        guarantee=guarantee_to_proto(report.guarantee),
        warnings=report.warnings,
        stages=[stage_report_to_proto(stage) for stage in report.stages],
    )


def _validation_from_proto(report: execution_pb2.ValidationReport) -> ValidationReport:
    return ValidationReport(
        checks_passed=report.checks_passed,
        checks_failed=report.checks_failed,
        repair_attempts=report.repair_attempts,
        remaining_violations=tuple(violation_from_proto(violation) for violation in report.remaining_violations),
        guarantee=guarantee_from_proto(report.guarantee),
        warnings=tuple(report.warnings),
        stages=tuple(stage_report_from_proto(stage) for stage in report.stages),
    )


def state_to_proto(state: State | None) -> execution_pb2.LifecycleState.ValueType:
    """Encode a state, or leave it unset if it is None."""
    return _STATES.to_proto(state)


def state_from_proto(value: int) -> State | None:
    """Decode a state, or return None if it is unset. Raises InvalidRequest if the state is unknown."""
    state = _STATES.from_proto(value)
    if state is None and value != execution_pb2.LIFECYCLE_STATE_UNSPECIFIED:
        raise InvalidRequest(
            f"there is no state {value}: use one of {', '.join(_STATE_PREFIX + name for name in State)}"
        )
    return state


def variant_from_proto(variant: execution_pb2.ExperimentVariant) -> ExperimentVariant:
    """Decode a variant of an experiment."""
    return ExperimentVariant(variant.experiment, variant.variant)


def variant_to_proto(variant: ExperimentVariant) -> execution_pb2.ExperimentVariant:
    """Encode a variant of an experiment."""
    return execution_pb2.ExperimentVariant(experiment=variant.experiment, variant=variant.variant)
