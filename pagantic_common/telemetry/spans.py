"""Spans of the current work; without recording they cost a single check."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from opentelemetry import context, trace
from opentelemetry.trace import Link, Span, SpanKind, StatusCode
from opentelemetry.util.types import AttributeValue

from pagantic_common.domain.errors import PaganticError
from pagantic_common.telemetry.names import ERROR_TYPE
from pagantic_common.telemetry.tracing import recording_tracer, remote_context

Attributes = Mapping[str, AttributeValue]

CANCELLED = "CANCELLED"
NANOSECONDS = 1_000_000_000


@contextmanager
def span(
    name: str,
    attributes: Attributes | None = None,
    *,
    kind: SpanKind = SpanKind.INTERNAL,
    links: Sequence[Link] = (),
) -> Iterator[Span]:
    """Record the work inside as a span below the current span; an error that leaves it is recorded by its code."""
    tracer = recording_tracer()
    if tracer is None:
        yield trace.INVALID_SPAN
        return
    with _entered(tracer.start_span(name, kind=kind, attributes=attributes, links=links)) as opened:
        yield opened


@contextmanager
def server_span(name: str, attributes: Attributes, traceparent: str) -> Iterator[Span]:
    """If spans are recorded, record the work inside as a span below the caller's, given by its W3C header.

    Errors are left to the work: a caller's error is not always the server's.
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
    """Make a span current for the work inside, and end it with the work."""
    token = context.attach(trace.set_span_in_context(opened))
    try:
        yield opened
    except GeneratorExit:  # The reader of a stream has closed it, which is not a failure.
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
    """Return the name of a kind of error: its code in the taxonomy, or its class."""
    if isinstance(error, PaganticError) and error.code is not None:
        return error.code.value
    if isinstance(error, asyncio.CancelledError):
        return CANCELLED
    return type(error).__name__


def note_error(failed: Span, error_type: str) -> None:
    """Mark a span as failed; texts of errors may quote callers, so they are left out."""
    failed.set_attribute(ERROR_TYPE, error_type)
    failed.set_status(StatusCode.ERROR)


def record_span(
    name: str, began_s: float, ended_s: float, attributes: Attributes | None = None, *, error_type: str = ""
) -> None:
    """Record work that has ended as a span below the current span; its times are monotonic seconds."""
    tracer = recording_tracer()
    if tracer is None:
        return
    offset_ns = time.time_ns() - time.monotonic_ns()
    began = tracer.start_span(name, attributes=attributes, start_time=offset_ns + round(began_s * NANOSECONDS))
    if error_type:
        note_error(began, error_type)
    began.end(offset_ns + round(ended_s * NANOSECONDS))
