"""Distributed traces. With a collector, every call records spans; otherwise only the ids are propagated."""

from __future__ import annotations

import asyncio
import secrets
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING, cast

from opentelemetry import context, trace
from opentelemetry.trace import Link, Span, SpanKind, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from pagantic_common.domain.errors import PaganticError
from pagantic_common.telemetry.names import ERROR_TYPE

Attributes = Mapping[str, AttributeValue]

CANCELLED = "CANCELLED"
NANOSECONDS = 1_000_000_000


if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

TRACEPARENT_KEY = "traceparent"
TRACEPARENT_PARTS = 4
SPAN_ID_DIGITS = 16

_chosen_trace_id: ContextVar[int] = ContextVar("chosen_trace_id", default=0)
_propagator = TraceContextTextMapPropagator()


def new_trace_id() -> int:
    """Return the id of a new trace: the id passed to `trace_scope`, or else 128 random bits that are not all 0."""
    return _chosen_trace_id.get() or secrets.randbits(128) or 1


def new_span_id() -> int:
    """Return 64 random bits that are not all 0."""
    return secrets.randbits(64) or 1


def recording_tracer() -> Tracer | None:
    """Return the tracer that records spans, or None if spans are not recorded.

    The host program may have set the tracer up. Only a provider of the SDK records spans, and a process that never
    imported the SDK cannot have such a provider.
    """
    provider = trace.get_tracer_provider()
    sdk_class = getattr(sys.modules.get("opentelemetry.sdk.trace"), "TracerProvider", None)
    if sdk_class is None or not isinstance(provider, sdk_class):
        return None
    return _tracer_of(cast("TracerProvider", provider))


@lru_cache(maxsize=1)
def _tracer_of(provider: TracerProvider) -> Tracer:
    return provider.get_tracer("pagantic")


def is_recording() -> bool:
    """Return whether spans are recorded."""
    return recording_tracer() is not None


def remote_context(traceparent: str) -> context.Context:
    """Return the context of a caller's span from its W3C header, or the current context without a header."""
    if not traceparent:
        return context.get_current()
    return _propagator.extract({TRACEPARENT_KEY: traceparent})


@contextmanager
def trace_ids(traceparent: str) -> Iterator[None]:
    """Propagate the ids of the caller's trace, or of a new trace, in the enclosed work without recording it."""
    caller = trace.get_current_span(remote_context(traceparent)).get_span_context()
    trace_id = caller.trace_id
    if not caller.is_valid:
        trace_id = new_trace_id()
    with _inside(trace_id, caller.trace_flags):
        yield


def span_id_of(traceparent: str) -> str:
    """Return the span id in a W3C header as 16 hex digits, or an empty string if the header has no span id."""
    parts = traceparent.split("-")
    if len(parts) != TRACEPARENT_PARTS or len(parts[2]) != SPAN_ID_DIGITS:
        return ""
    return parts[2]


def current_traceparent() -> str:
    """Return the W3C header of the current span, or an empty string without a span."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier)
    return carrier.get(TRACEPARENT_KEY, "")


@contextmanager
def trace_scope(trace_id: str) -> Iterator[None]:
    """Run the enclosed work in a trace with this id, 32 hex digits. An empty id changes nothing.

    If spans are recorded, the next span begins the trace, and the process's sampler decides whether to sample it.
    """
    number = int(trace_id or "0", 16)
    if not number or number == trace.get_current_span().get_span_context().trace_id:
        yield
        return
    chosen = _chosen_trace_id.set(number)
    try:
        with _apart() if is_recording() else _inside(number, trace.TraceFlags.get_default()):
            yield
    finally:
        with suppress(ValueError):
            _chosen_trace_id.reset(chosen)


@contextmanager
def _apart() -> Iterator[None]:
    """Leave the current span during the enclosed work."""
    token = context.attach(trace.set_span_in_context(trace.INVALID_SPAN))
    try:
        yield
    finally:
        with suppress(ValueError):
            token.var.reset(token)


@contextmanager
def _inside(trace_id: int, flags: trace.TraceFlags) -> Iterator[None]:
    span = trace.SpanContext(trace_id, new_span_id(), is_remote=False, trace_flags=flags)
    token = context.attach(trace.set_span_in_context(trace.NonRecordingSpan(span)))
    try:
        yield
    finally:
        # An async generator may be finalized in another context, in which its token is invalid. `context.detach` would
        # log an error with a traceback.
        with suppress(ValueError):
            token.var.reset(token)


def shut_down_tracing() -> None:
    """Send the remaining spans, and shut down the tracer provider."""
    if is_recording():
        cast("TracerProvider", trace.get_tracer_provider()).shutdown()


@contextmanager
def span(
    name: str,
    attributes: Attributes | None = None,
    *,
    kind: SpanKind = SpanKind.INTERNAL,
    links: Sequence[Link] = (),
) -> Iterator[Span]:
    """Record the enclosed work as a span below the current span. An error that escapes is recorded by its code."""
    tracer = recording_tracer()
    if tracer is None:
        yield trace.INVALID_SPAN
        return
    with _entered(tracer.start_span(name, kind=kind, attributes=attributes, links=links)) as opened:
        yield opened


@contextmanager
def server_span(name: str, attributes: Attributes, traceparent: str) -> Iterator[Span]:
    """If spans are recorded, record the enclosed work as a span below the caller's span, given by its W3C header.

    The enclosed work records errors itself, because not every error of a call is an error of the server.
    """
    tracer = recording_tracer()
    if tracer is None:
        yield trace.INVALID_SPAN
        return
    caller = remote_context(traceparent)
    opened = tracer.start_span(name, caller, kind=SpanKind.SERVER, attributes=attributes)
    with _entered(opened, notes_errors=False):
        yield opened


@contextmanager
def _entered(opened: Span, *, notes_errors: bool = True) -> Iterator[Span]:
    """Make a span current for the enclosed work, and end the span with the work."""
    token = context.attach(trace.set_span_in_context(opened))
    try:
        yield opened
    except GeneratorExit:  # The reader closed the stream, which is not a failure.
        raise
    except BaseException as error:
        if notes_errors:
            note_error(opened, error_type_of(error))
        raise
    finally:
        opened.end()
        # An async generator may be finalized in another context, where its token is invalid. `context.detach` would log
        # an error with a traceback.
        with suppress(ValueError):
            token.var.reset(token)


def error_type_of(error: BaseException) -> str:
    """Return the name of an error's type: its code in the taxonomy, or its class."""
    if isinstance(error, PaganticError) and error.code is not None:
        return error.code.value
    if isinstance(error, asyncio.CancelledError):
        return CANCELLED
    return type(error).__name__


def note_error(failed: Span, error_type: str) -> None:
    """Mark a span as failed. Error messages are omitted, because they may quote callers."""
    failed.set_attribute(ERROR_TYPE, error_type)
    failed.set_status(StatusCode.ERROR)


def record_span(
    name: str, began_s: float, ended_s: float, attributes: Attributes | None = None, *, error_type: str = ""
) -> None:
    """Record completed work as a span below the current span. Times are monotonic seconds."""
    tracer = recording_tracer()
    if tracer is None:
        return
    offset_ns = time.time_ns() - time.monotonic_ns()
    began = tracer.start_span(name, attributes=attributes, start_time=offset_ns + round(began_s * NANOSECONDS))
    if error_type:
        note_error(began, error_type)
    began.end(offset_ns + round(ended_s * NANOSECONDS))
