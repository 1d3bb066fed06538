"""The stream of a response: the same events however the text is cut, and from any place on."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.openai.responses.objects import ResponseHead
from gateway.http.openai.responses.stream import ResponseEvents
from pagantic.common.v1 import error_pb2, message_pb2
from pagantic.inference.v1 import generation_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.domain.errors import Aborted, Internal, PaganticError
from tests.unit.http.test_chunks import call, completed, content, discarded, failed, reasoning

HEAD = ResponseHead(execution_pb2.SystemRequest(request_id="r"), {"model": "m", "created_at": 7})
TOOL = generation_pb2.FINISH_REASON_TOOL
CALLS = [message_pb2.ToolCall(id=f"c{n}", name=f"tool{n}", arguments_json=f'{{"a": {n}}}') for n in range(2)]
CUTS = st.lists(st.integers(0, 40), max_size=5)
ENDINGS = {
    "text": completed(content="hello there"),
    "thought": completed(content="hello", reasoning="hm, well"),
    "calls": completed(tool_calls=CALLS, finish_reason=TOOL),
    "all": completed(content="let me see", reasoning="a clock", tool_calls=CALLS, finish_reason=TOOL),
    "nothing": completed(),
    "failed": failed(error_pb2.ERROR_CODE_INFERENCE_ENGINE_ERROR),
    "cut": failed(error_pb2.ERROR_CODE_INFERENCE_OUTPUT_TRUNCATED, content="hel"),
}


def events_of(*events, after=-1):
    stream = ResponseEvents(HEAD, after)
    told = list(stream.first())
    try:
        for event in events:
            told += stream.of(event)
    except Aborted:
        raise
    except PaganticError as error:  # The stream has begun already, so the error is an event.
        told += stream.error(error, "r")
    return told


def kinds(events):
    return [event["type"].removeprefix("response.") for event in events]


def pieces(text, cuts):
    places = [0, *sorted({cut % (len(text) + 1) for cut in cuts}), len(text)]
    return [text[start:end] for start, end in pairwise(places)]


def deltas_of(ending, cuts):
    """Return the events of an execution that streams a whole response in pieces."""
    response = ending.completed.response
    yield from (reasoning(piece) for piece in pieces(response.reasoning, cuts))
    yield from (content(piece) for piece in pieces(response.content, cuts))
    for index, one in enumerate(response.tool_calls):
        yield call(index, "", id=one.id, name=one.name)
        yield from (call(index, piece) for piece in pieces(one.arguments_json, cuts))
    yield ending


def joined(events):
    """Return the events with the deltas of one text as one: its last sequence number, and its whole text."""
    told = []
    for event in events:
        if told and event["type"].endswith(".delta") and told[-1]["type"] == event["type"]:
            told[-1] = {**event, "delta": told[-1]["delta"] + event["delta"]}
        else:
            told.append(event)
    return told


def test_the_events_of_a_text_are_those_that_clients_know():
    events = events_of(content("hello"), content(" there"), ENDINGS["text"])
    assert kinds(events) == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *("output_text.delta", "output_text.delta", "output_text.done"),
        *("content_part.done", "output_item.done", "completed"),
    ]
    assert [event["sequence_number"] for event in events] == [0, 1, 2, 3, 8, 14, 15, 16, 17, 18]
    assert events[-1]["response"]["output"] == [events[-2]["item"]]


@pytest.mark.parametrize("name", ENDINGS)
@given(cuts=CUTS)
def test_a_stream_tells_the_same_however_its_text_is_cut(name, cuts):
    whole = events_of(ENDINGS[name])
    assert joined(events_of(*deltas_of(ENDINGS[name], cuts))) == joined(whole)


@pytest.mark.parametrize("name", ENDINGS)
@given(cuts=CUTS, later=CUTS, seen=st.integers(0))
def test_a_stream_that_was_lost_goes_on_after_the_last_event_that_came(name, cuts, later, seen):
    before = events_of(*deltas_of(ENDINGS[name], cuts))
    before = before[: 1 + seen % len(before)]
    rest = events_of(*deltas_of(ENDINGS[name], later), after=before[-1]["sequence_number"])
    assert joined(before + rest) == joined(events_of(ENDINGS[name]))
    assert all(event["sequence_number"] > before[-1]["sequence_number"] for event in rest)


@pytest.mark.parametrize(
    ("name", "last", "status"),
    [
        ("text", "completed", "completed"),
        ("calls", "completed", "completed"),
        ("cut", "incomplete", "incomplete"),
        ("failed", "failed", "failed"),
    ],
)
def test_the_last_event_says_how_it_ended(name, last, status):
    event = events_of(ENDINGS[name])[-1]
    assert (kinds([event]), event["response"]["status"]) == ([last], status)


def test_a_cancelled_response_ends_as_failed_and_is_cancelled():
    event = events_of(content("hel"), failed(error_pb2.ERROR_CODE_CANCELLED_SIGNAL, content="hel"))[-1]
    assert (event["type"], event["response"]["status"]) == ("response.failed", "cancelled")


def test_a_text_that_was_repaired_after_it_was_sent_ends_the_stream():
    with pytest.raises(Aborted, match="repaired after it was sent"):
        events_of(content("{'a': 1}"), completed(content='{"a":1}', structured_output_json='{"a":1}'))


def test_a_failure_before_anything_was_sent_is_raised():
    with pytest.raises(Internal, match="it is broken"):
        list(ResponseEvents(HEAD).of(ENDINGS["failed"]))


def test_a_response_that_begins_has_no_usage_and_is_in_progress_unless_in_the_background():
    later = ResponseHead(HEAD.request, {**HEAD.echo, "background": True})
    for head, status in ((HEAD, "in_progress"), (later, "queued")):
        created, running = ResponseEvents(head).first()
        assert (created["response"]["status"], running["response"]["status"]) == (status, "in_progress")
        assert (created["response"]["usage"], running["response"]["usage"]) == (None, None)


def test_the_items_of_the_response_are_those_of_its_stream():
    token = generation_pb2.TokenLogprob(piece=b"b", logprob=-1.0)
    last = completed(content="b", earlier_content="a", reasoning="hm", logprobs=[token])
    events = events_of(content("a"), reasoning("hm"), content("b"), last)
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert [item["id"] for item in done] == ["msg_r", "rs_r", "msg_r_1"]
    assert events[-1]["response"]["output"] == done
    (logprobs,) = done[-1]["content"][0]["logprobs"]
    assert logprobs["bytes"] == [98]
    assert [event["logprobs"] for event in events if event["type"] == "response.output_text.done"] == [[], [logprobs]]


def test_a_call_that_was_cut_is_no_item_of_the_response():
    cut = failed(error_pb2.ERROR_CODE_INFERENCE_OUTPUT_TRUNCATED, content="hm")
    events = events_of(content("hm"), call(0, '{"a', id="c", name="clock"), cut)
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert [(item["type"], item["status"]) for item in done] == [
        ("message", "completed"),
        ("function_call", "incomplete"),
    ]
    assert [item["type"] for item in events[-1]["response"]["output"]] == ["message"]


def test_an_answer_that_a_stop_text_ended_is_complete():
    stopped = failed(error_pb2.ERROR_CODE_INFERENCE_OUTPUT_TRUNCATED, content="[1", details_json='{"stop":"]"}')
    for events in (events_of(stopped), events_of(content("[1"), stopped)):
        assert (events[-1]["type"], events[-1]["response"]["status"]) == ("response.completed", "completed")
        assert events[-1]["response"]["output"][0]["content"][0]["text"] == "[1"


def test_an_attempt_that_is_discarded_after_its_text_was_sent_ends_the_stream():
    with pytest.raises(Aborted, match="attempt 1 was discarded"):
        events_of(content("hel"), discarded())
    assert kinds(events_of(discarded())) == ["created", "in_progress"]
