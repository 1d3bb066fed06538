"""Reads the correlation and the deadline of a caller from a call's metadata."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pagantic_common.domain.correlation import CorrelationContext
from pagantic_common.domain.deadline import Deadline
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.ids import require_id
from pagantic_common.telemetry.names import CAUSED_BY_KEY, REQUEST_ID_KEY, SESSION_ID_KEY, STEP_NAME_KEY
from pagantic_common.telemetry.scope import work_scope
from pagantic_common.telemetry.tracing import TRACEPARENT_KEY, call_scope, span_id_of


@contextmanager
def caller_scope(metadata: Mapping[str, Any], timeout_s: float | None) -> Iterator[None]:
    """Set correlation, trace and deadline for the work inside; raises InvalidRequest for wrong metadata."""
    traceparent = str(metadata.get(TRACEPARENT_KEY, ""))
    correlation = CorrelationContext(
        parent_span_id=span_id_of(traceparent),
        request_id=_read_id(metadata, REQUEST_ID_KEY),
        session_id=_read_id(metadata, SESSION_ID_KEY),
        step_name=_read_text(metadata, STEP_NAME_KEY),
        caused_by=_read_text(metadata, CAUSED_BY_KEY),
    )
    deadline = Deadline.after(time.monotonic(), timeout_s)
    with call_scope(traceparent), work_scope(correlation=correlation, deadline=deadline):
        yield


def _read_id(metadata: Mapping[str, Any], key: str) -> str:
    value: str = metadata.get(key, "")
    if not value:
        return ""
    return require_id(f"metadata {key}", value)


def _read_text(metadata: Mapping[str, Any], key: str) -> str:
    try:
        return bytes(metadata.get(key, b"")).decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"metadata {key} is not UTF-8") from None
