"""The caller, the correlation, the deadline and the effect of the current work, set once per call and read below it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace

from opentelemetry import trace

from pagantic_common.domain.calls.correlation import CorrelationContext
from pagantic_common.domain.calls.principal import LOCAL, Principal
from pagantic_common.domain.deadline import Deadline

_principal: ContextVar[Principal] = ContextVar("principal", default=LOCAL)
_correlation: ContextVar[CorrelationContext] = ContextVar("correlation", default=CorrelationContext())  # noqa: B039
_deadline: ContextVar[Deadline] = ContextVar("deadline", default=Deadline())  # noqa: B039
_effect_id: ContextVar[str] = ContextVar("effect_id", default="")


def current_principal() -> Principal:
    """Return the caller for whom the current work runs."""
    return _principal.get()


def current_scope() -> CorrelationContext:
    """Return the correlation of the current work, without span ids."""
    return _correlation.get()


def current_correlation() -> CorrelationContext:
    """Return the correlation of the current work, with the ids of the current span."""
    correlation = _correlation.get()
    span = trace.get_current_span().get_span_context()
    if not span.is_valid:
        return correlation
    return replace(
        correlation, trace_id=trace.format_trace_id(span.trace_id), span_id=trace.format_span_id(span.span_id)
    )


def current_span_id() -> str:
    """Return the id of the current span as 16 hex digits, or an empty string without a span."""
    span = trace.get_current_span().get_span_context()
    if not span.is_valid:
        return ""
    return trace.format_span_id(span.span_id)


def current_deadline() -> Deadline:
    """Return the deadline of the current work."""
    return _deadline.get()


def current_effect_id() -> str:
    """Return the effect id of the current tool call, or an empty string if the call has no effect id."""
    return _effect_id.get()


@contextmanager
def effect_scope(effect_id: str) -> Iterator[None]:
    """Set the effect id of the enclosed tool call."""
    token = _effect_id.set(effect_id)
    try:
        yield
    finally:
        with suppress(ValueError):  # An async generator may be finalized in another context.
            _effect_id.reset(token)


@contextmanager
def work_scope(
    *,
    principal: Principal | None = None,
    correlation: CorrelationContext | None = None,
    deadline: Deadline | None = None,
    is_detached: bool = False,
) -> Iterator[None]:
    """Set caller, correlation and deadline for the enclosed work. A value of None keeps the surrounding value.

    The deadline of the surrounding work also limits the enclosed work, unless the enclosed work is detached. Detached
    work also serves callers other than the caller that started it.
    """
    bound = _deadline.get()
    if is_detached:
        bound = Deadline()
    principal_token = _principal.set(principal or _principal.get())
    correlation_token = _correlation.set(correlation or _correlation.get())
    deadline_token = _deadline.set(min(deadline or Deadline(), bound))
    try:
        yield
    finally:
        # An async generator may be finalized in another context, in which its tokens are invalid.
        with suppress(ValueError):
            _deadline.reset(deadline_token)
            _correlation.reset(correlation_token)
            _principal.reset(principal_token)
