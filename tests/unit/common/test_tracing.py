"""A span's scope ends quietly, wherever the work inside it is finalized."""

import asyncio
import contextvars
import logging

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON

from pagantic_common.telemetry import tracing
from pagantic_common.telemetry.tracing import current_traceparent, trace_scope

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"


async def stream():
    with trace_scope(TRACE_ID):
        yield current_traceparent()
        yield current_traceparent()


async def first_of(values):
    return await anext(values)


async def test_a_stream_that_is_closed_in_another_context_logs_no_error(caplog):
    left = stream()
    assert TRACE_ID in await asyncio.create_task(first_of(left), context=contextvars.copy_context())
    with caplog.at_level(logging.ERROR):
        await left.aclose()
    assert not caplog.records


async def test_a_stream_that_ends_in_its_context_leaves_its_span():
    before = current_traceparent()
    assert len({value async for value in stream()}) == 1
    assert current_traceparent() == before


@pytest.mark.parametrize(("sampler", "is_sampled"), [(ALWAYS_ON, True), (ALWAYS_OFF, False)])
def test_a_caller_chooses_a_trace_and_not_whether_it_is_recorded(monkeypatch, sampler, is_sampled):
    provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
    monkeypatch.setattr(tracing.trace, "get_tracer_provider", lambda: provider)
    with trace_scope(TRACE_ID):
        span = trace.get_current_span().get_span_context()
    assert trace.format_trace_id(span.trace_id) == TRACE_ID
    assert span.trace_flags.sampled is is_sampled
