"""Event <-> ExecutionEvent."""

from __future__ import annotations

from datetime import UTC

from pagantic.common.v1 import correlation_pb2
from pagantic.orchestrator.v1 import event_pb2
from pagantic_common.codec.errors import failure_from_proto, failure_to_proto
from pagantic_common.codec.fields import decode_optional, encode_optional
from pagantic_common.codec.messages import duration_from_proto, duration_to_proto
from pagantic_common.domain.calls.correlation import CorrelationContext
from services.orchestrator.convert.lifecycle import timestamp_to_proto
from services.orchestrator.convert.payload import decode_payload, encode_payload
from services.orchestrator.core.execution.events import Event


def event_to_proto(event: Event) -> event_pb2.ExecutionEvent:
    """Encode an event."""
    correlation = event.correlation
    return event_pb2.ExecutionEvent(
        correlation=correlation_pb2.CorrelationContext(
            request_id=correlation.request_id,
            session_id=correlation.session_id,
            trace_id=correlation.trace_id,
            span_id=correlation.span_id,
            parent_span_id=correlation.parent_span_id,
            caused_by=correlation.caused_by,
        ),
        sequence=event.sequence,
        timestamp=timestamp_to_proto(event.timestamp),
        layer=event.layer,
        action=event.action,
        attempt=event.attempt,
        tool_call_id=event.tool_call_id,
        step_name=correlation.step_name,
        duration=encode_optional(event.duration_s, duration_to_proto),
        error=encode_optional(event.failure, failure_to_proto),
        **encode_payload(event.payload),
    )


def event_from_proto(encoded: event_pb2.ExecutionEvent) -> Event:
    """Decode a stored event."""
    correlation = encoded.correlation
    return Event(
        correlation=CorrelationContext(
            request_id=correlation.request_id,
            session_id=correlation.session_id,
            trace_id=correlation.trace_id,
            span_id=correlation.span_id,
            parent_span_id=correlation.parent_span_id,
            step_name=encoded.step_name,
            caused_by=correlation.caused_by,
        ),
        sequence=encoded.sequence,
        timestamp=encoded.timestamp.ToDatetime(UTC),
        layer=encoded.layer,
        action=encoded.action,
        attempt=encoded.attempt,
        payload=decode_payload(encoded),
        duration_s=decode_optional(encoded, "duration", duration_from_proto),
        failure=decode_optional(encoded, "error", failure_from_proto),
        tool_call_id=encoded.tool_call_id,
    )
