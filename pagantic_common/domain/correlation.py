"""What ties everything that happens for one request together."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CorrelationContext:
    """Ids of a request, its conversation, its trace and what caused the work at hand."""

    request_id: str = ""
    session_id: str = ""
    trace_id: str = ""
    span_id: str = ""
    parent_span_id: str = ""
    step_name: str = ""
    caused_by: str = ""
