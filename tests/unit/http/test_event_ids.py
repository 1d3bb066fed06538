"""Ids of native events: a stream that was lost goes on without a gap, and without telling anything twice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.streams.event_ids import EventIds
from pagantic.inference.v1 import generation_pb2
from pagantic.orchestrator.v1 import event_pb2
from pagantic_common.domain.errors import InvalidRequest

KINDS = st.sampled_from(["content", "reasoning", "call", "begun"])
TEXTS = st.lists(st.tuples(KINDS, st.text(min_size=1, max_size=9)), max_size=6)


def delta(sequence, kind, text):
    if kind == "content":
        return event_pb2.ExecutionEvent(sequence=sequence, content_delta=event_pb2.ContentDelta(text=text))
    if kind == "reasoning":
        return event_pb2.ExecutionEvent(sequence=sequence, reasoning_delta=event_pb2.ReasoningDelta(text=text))
    call = generation_pb2.ToolCallDelta(arguments_json=text)
    if kind == "begun":
        call = generation_pb2.ToolCallDelta(name=text)
    return event_pb2.ExecutionEvent(sequence=sequence, tool_call_delta=call)


def stored(sequence):
    return event_pb2.ExecutionEvent(sequence=sequence, step_start=event_pb2.StepStart(name="s"))


def text_of(event):
    return (
        event.content_delta.text
        or event.reasoning_delta.text
        or event.tool_call_delta.arguments_json
        or event.tool_call_delta.name
    )


def told(events, last=""):
    """Return what a client gets: the ids and texts of the events of a stream after an id."""
    ids = EventIds(last)
    got = []
    for one in events:
        event = event_pb2.ExecutionEvent()
        event.CopyFrom(one)
        is_delta = bool(text_of(event))
        if (event.sequence > ids.after_sequence or (is_delta and event.sequence == ids.after_sequence)) and (
            event_id := ids.number(event)
        ):
            got.append((event_id, text_of(event)))
    return got


@given(first=TEXTS, second=TEXTS, seen=st.integers(0))
def test_a_lost_stream_goes_on_without_a_gap_or_a_repetition(first, second, seen):
    events = [stored(1), *(delta(1, *one) for one in first), stored(2), *(delta(2, *one) for one in second), stored(3)]
    whole = told(events)
    before = whole[: 1 + seen % len(whole)]
    rest = told(events, before[-1][0])
    assert before + rest == whole
    assert len({event_id for event_id, _ in whole}) == len(whole)


def test_a_place_in_the_midst_of_a_delta_is_found():
    events = [stored(1), delta(1, "content", "hello "), delta(1, "content", "there")]
    assert told(events, "1.8") == [("1.11", "ere")]


@pytest.mark.parametrize("last", ["x", "-1", "1.", "1.2.3", "1" * 19])
def test_an_id_that_cannot_be_is_refused(last):
    with pytest.raises(InvalidRequest, match="Last-Event-ID"):
        EventIds(last)
