"""A span's scope ends quietly, wherever the work inside it is finalized."""

import asyncio
import contextvars
import logging
import time
from contextlib import aclosing

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON
from opentelemetry.trace import StatusCode

from pagantic_common.domain.errors import ErrorCode, NotFound
from pagantic_common.telemetry.tracing import current_traceparent, record_span, span, trace_scope
from pagantic_common.testing.spans import recording_spans

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
def test_a_caller_chooses_a_trace_and_not_whether_it_is_recorded(sampler, is_sampled):
    with recording_spans(sampler=sampler), trace_scope(TRACE_ID), span("work"):
        begun = trace.get_current_span().get_span_context()
    assert trace.format_trace_id(begun.trace_id) == TRACE_ID
    assert begun.trace_flags.sampled is is_sampled


def test_a_chosen_trace_begins_with_a_span_that_has_no_parent():
    with recording_spans() as spans, span("call"), trace_scope(TRACE_ID), span("work"), span("part"):
        pass
    work, part, call = (spans.named(name) for name in ("work", "part", "call"))
    assert work.parent is None
    assert part.parent.span_id == work.context.span_id
    assert part.context.trace_id == work.context.trace_id == int(TRACE_ID, 16)
    assert call.context.trace_id != work.context.trace_id


def test_an_error_that_leaves_a_span_is_noted_by_its_code_and_not_by_its_text():
    with recording_spans() as spans:
        for error in (
            NotFound("a secret", code=ErrorCode.TOOL_NOT_FOUND),
            asyncio.CancelledError(),
            ValueError("a secret"),
        ):
            with pytest.raises(type(error)), span(type(error).__name__):
                raise error
    assert [one.attributes["error.type"] for one in spans.all()] == ["TOOL_NOT_FOUND", "CANCELLED", "ValueError"]
    assert all(one.status.status_code is StatusCode.ERROR and not one.events for one in spans.all())
    assert "secret" not in "".join(one.to_json() for one in spans.all())


async def test_a_stream_that_its_reader_closes_has_not_failed():
    async def read():
        with span("stream"):
            yield 1
            yield 2

    with recording_spans() as spans:
        async with aclosing(read()) as values:
            await anext(values)
    assert spans.named("stream").status.is_unset


def test_work_that_has_ended_is_recorded_at_its_own_times():
    now_s = time.monotonic()
    with recording_spans() as spans, span("whole"):
        record_span("before", now_s - 3, now_s - 1, {"count": 2})
    before, whole = spans.named("before"), spans.named("whole")
    assert before.end_time - before.start_time == pytest.approx(2e9, abs=1e3)
    assert before.parent.span_id == whole.context.span_id


def test_without_a_collector_nothing_is_recorded():
    with span("work") as work:
        assert not work.is_recording()
        assert not trace.get_current_span().get_span_context().is_valid
