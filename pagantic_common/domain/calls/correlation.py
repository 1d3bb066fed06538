"""The ids that link all the work for a request."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CorrelationContext:
    """Ids of the request, its conversation and its trace, and the cause of the current work."""

    request_id: str = ""
    session_id: str = ""
    trace_id: str = ""
    span_id: str = ""
    parent_span_id: str = ""
    step_name: str = ""
    caused_by: str = ""
