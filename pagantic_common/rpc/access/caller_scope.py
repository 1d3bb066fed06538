"""Reads the correlation and the deadline of a caller from a call's metadata."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pagantic_common.domain.calls.correlation import CorrelationContext
from pagantic_common.domain.deadline import Deadline
from pagantic_common.domain.errors import InvalidRequest, PaganticError
from pagantic_common.domain.ids import require_id
from pagantic_common.rpc.status import status_code_of
from pagantic_common.telemetry.names import (
    CAUSED_BY_KEY,
    REQUEST_ID_KEY,
    RPC_METHOD,
    RPC_STATUS,
    RPC_SYSTEM,
    SESSION_ID_KEY,
    STEP_NAME_KEY,
)
from pagantic_common.telemetry.scope import work_scope
from pagantic_common.telemetry.spans import error_type_of, note_error, server_span
from pagantic_common.telemetry.tracing import TRACEPARENT_KEY, is_recording, span_id_of, trace_ids


@contextmanager
def caller_scope(method: str, metadata: Mapping[str, Any], timeout_s: float | None) -> Iterator[None]:
    """Set correlation, trace and deadline for the work of a call inside; raises InvalidRequest for wrong metadata."""
    traceparent = str(metadata.get(TRACEPARENT_KEY, ""))
    correlation = CorrelationContext(
        parent_span_id=span_id_of(traceparent),
        request_id=_read_id(metadata, REQUEST_ID_KEY),
        session_id=_read_id(metadata, SESSION_ID_KEY),
        step_name=_read_text(metadata, STEP_NAME_KEY),
        caused_by=_read_text(metadata, CAUSED_BY_KEY),
    )
    deadline = Deadline.after(time.monotonic(), timeout_s)
    with _span_of(method, traceparent), work_scope(correlation=correlation, deadline=deadline):
        yield


@contextmanager
def _span_of(method: str, traceparent: str) -> Iterator[None]:
    """Record a call as a span below the caller's; without recording, only propagate its ids."""
    if not is_recording():
        with trace_ids(traceparent):
            yield
        return
    with server_span(method, {RPC_SYSTEM: "grpc", RPC_METHOD: method}, traceparent) as served:
        try:
            yield
        except GeneratorExit:
            raise
        except BaseException as error:
            status = _status_of(error)
            served.set_attribute(RPC_STATUS, status)
            if status in _OF_THE_SERVER:
                note_error(served, error_type_of(error))
            raise
        served.set_attribute(RPC_STATUS, "OK")


# The statuses that are failures of the server, by the conventions for calls.
_OF_THE_SERVER = frozenset({"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"})


def _status_of(error: BaseException) -> str:
    if isinstance(error, PaganticError):
        return status_code_of(error).name
    if isinstance(error, asyncio.CancelledError):
        return "CANCELLED"
    return "INTERNAL"


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
