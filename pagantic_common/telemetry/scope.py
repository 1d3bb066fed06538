"""What the work at hand belongs to: its correlation and its deadline. Set once per call, read anywhere below it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace

from opentelemetry import trace

from pagantic_common.domain.correlation import CorrelationContext
from pagantic_common.domain.deadline import Deadline

_correlation: ContextVar[CorrelationContext] = ContextVar("correlation", default=CorrelationContext())  # noqa: B039
_deadline: ContextVar[Deadline] = ContextVar("deadline", default=Deadline())  # noqa: B039


def current_scope() -> CorrelationContext:
    """Return the correlation that was set for the work at hand."""
    return _correlation.get()


def current_correlation() -> CorrelationContext:
    """Return the correlation of the work at hand, with the ids of the current span."""
    correlation, span = _correlation.get(), trace.get_current_span().get_span_context()
    if not span.is_valid:
        return correlation
    return replace(
        correlation, trace_id=trace.format_trace_id(span.trace_id), span_id=trace.format_span_id(span.span_id)
    )


def current_span_id() -> str:
    """Return the id of the current span, 16 hex digits; empty when there is none."""
    span = trace.get_current_span().get_span_context()
    return trace.format_span_id(span.span_id) if span.is_valid else ""


def current_deadline() -> Deadline:
    """Return the deadline of the work at hand."""
    return _deadline.get()


@contextmanager
def work_scope(
    *, correlation: CorrelationContext | None = None, deadline: Deadline | None = None, is_detached: bool = False
) -> Iterator[None]:
    """Set correlation and deadline for the work inside; a deadline only ever gets nearer.

    Detached work serves more than the call that began it, so that call's deadline is not its own.
    """
    correlation_token = _correlation.set(correlation if correlation is not None else _correlation.get())
    deadline_token = _deadline.set(min(deadline or Deadline(), Deadline() if is_detached else _deadline.get()))
    try:
        yield
    finally:
        # An async generator may be finalized in another context, where its tokens mean nothing.
        try:
            _deadline.reset(deadline_token)
            _correlation.reset(correlation_token)
        except ValueError:
            pass
