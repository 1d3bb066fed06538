"""The phases of a request, as spans."""

import asyncio
from dataclasses import replace

import pytest

from pagantic_common.testing.clock import FakeClock
from pagantic_common.testing.spans import recording_spans
from services.inference.app.generation import RequestTimes


def _seated():
    return RequestTimes(started_s=0.0, queued_s=1.0, seated_s=2.0, prompted_s=3.0)


def _leave(times, error):
    with times.recorded("m", FakeClock()):
        raise error


@pytest.mark.parametrize("left_by", [GeneratorExit, asyncio.CancelledError])
def test_a_reader_that_leaves_a_complete_answer_leaves_no_failed_span(left_by):
    times = replace(_seated(), completed_s=4.0)
    with recording_spans() as spans, pytest.raises(left_by):
        _leave(times, left_by)
    assert [(span.name, span.attributes.get("error.type")) for span in spans.all()] == [
        ("inference.queue", None),
        ("inference.prefill", None),
        ("inference.decode", None),
    ]
    decode = spans.named("inference.decode")
    assert decode.end_time - decode.start_time == pytest.approx(1e9)


@pytest.mark.parametrize("left_by", [GeneratorExit, asyncio.CancelledError])
def test_a_reader_that_leaves_before_the_end_cancels_the_phase_it_left(left_by):
    with recording_spans() as spans, pytest.raises(left_by):
        _leave(_seated(), left_by)
    assert [span.attributes.get("error.type") for span in spans.all()] == [None, None, "CANCELLED"]
