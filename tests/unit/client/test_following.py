"""`follow_to_end` goes on with an execution whose connection is lost, and stops its own when the reader leaves."""

import asyncio
from contextlib import aclosing
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagantic.orchestrator.v1 import event_pb2, execution_pb2
from pagantic_common.client import AnswerState, following
from pagantic_common.client.answer_state import is_streamed
from pagantic_common.domain.errors import DeadlineExceeded, InvalidRequest, NotFound, Overloaded, Unavailable
from tests.support.examples import examples
from tests.unit.client.scripted_streams import (
    ScriptedClient,
    began,
    begun,
    blocking,
    discarded,
    end,
    ended,
    piece,
    resumed,
    state,
    text,
    thought,
)

LOST = Unavailable("the connection was lost")
REQUEST = execution_pb2.SystemRequest(request_id="r")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(following, "RECONNECTS", replace(following.RECONNECTS, first_s=0.001))


async def events_of(client, what=REQUEST, **options):
    async with aclosing(client.follow_to_end(what, **options)) as events:
        return [event async for event in events]


async def read(client, request=REQUEST, **options):
    losses = []
    events = await events_of(client, request, on_lost=losses.append, **options)
    return "".join(event.content_delta.text for event in events), len(losses)


async def test_an_answer_goes_on_where_its_connection_was_lost_and_no_text_comes_twice():
    client = ScriptedClient(
        [state(1), text("one ", 1), text("tw", 1), LOST],
        [text("one two", 1), LOST],
        [text("one ", 1), text("two ", 1), text("three", 1), end(2, "one two three")],
    )
    assert await read(client) == ("one two three", 2)
    assert client.calls == ["stream", "follow r after 1", "follow r after 1"]
    assert client.request.background
    assert client.request.hints.timeout.seconds == 60
    assert not REQUEST.background, "the caller's request stays as it was"


async def test_the_text_after_a_later_stored_event_is_whole():
    client = ScriptedClient([state(1), text("one ", 1), LOST], [state(2), text("two", 2), end(3, "two")])
    assert await read(client) == ("one two", 1)


async def test_text_that_is_no_repetition_stays():
    client = ScriptedClient([state(1), text("one ", 1), LOST], [text("two ", 1), text("one ", 1), end(2, "")])
    assert await read(client) == ("one two one ", 1)


async def test_reasoning_and_calls_of_client_tools_do_not_come_twice():
    first = [state(1), thought("why ", 1), piece('{"a"', 1, "c1", "clock"), LOST]
    again = [thought("w", 1), thought("hy ", 1), piece("", 1, "c1", "clock"), piece('{"a": 1}', 1), end(2, "")]
    events = await events_of(ScriptedClient(first, again))
    assert [event.tool_call_delta.name for event in events if event.HasField("tool_call_delta")] == ["clock", ""]
    answer = AnswerState.of(events[:-1])
    assert (answer.reasoning.text, [call.arguments.text for call in answer.client_calls]) == ("why ", ['{"a": 1}'])


async def test_a_stream_that_ends_early_is_a_lost_connection_and_one_loss_is_told_once():
    client = ScriptedClient([state(1)], [LOST], [LOST], [end(2, "")])
    assert await read(client) == ("", 1)


async def test_a_request_keeps_the_time_that_it_states():
    request = execution_pb2.SystemRequest(request_id="r")
    request.hints.timeout.seconds = 5
    client = ScriptedClient([state(1), end(2, "")])
    await read(client, request)
    assert client.request.hints.timeout.seconds == 5
    assert client.calls == ["stream"], "an execution that has ended is not cancelled"


async def test_a_request_without_an_id_gets_one():
    client = ScriptedClient([state(1), LOST], [end(2, "")])
    await read(client, execution_pb2.SystemRequest())
    assert client.calls[1] == f"follow {client.request.request_id} after 1"
    assert client.request.request_id


@pytest.mark.parametrize(
    ("failure", "calls"),
    [
        (InvalidRequest("no"), ["stream"]),
        (Overloaded("full"), ["stream"]),
        (LOST, ["stream", "cancel r"]),
        (DeadlineExceeded("late"), ["stream", "cancel r"]),
    ],
)
async def test_a_request_that_nobody_took_fails_at_once_and_one_that_may_run_is_stopped(failure, calls):
    client = ScriptedClient([failure])
    with pytest.raises(type(failure)):
        await read(client)
    assert client.calls == calls


async def test_an_orchestrator_that_is_overloaded_when_the_connection_is_back_is_left_alone_as_long_as_it_says(
    monkeypatch,
):
    waits = []

    async def sleep(wait_s):
        waits.append(wait_s)

    monkeypatch.setattr("pagantic_common.client.responses.asyncio.sleep", sleep)
    full = [Overloaded("full", retry_after_s=after_s) for after_s in (7.0, 1e9, None)]
    client = ScriptedClient([state(1), LOST], *([error] for error in full), [end(2, "")])
    assert await read(client) == ("", 1)
    assert "cancel r" not in client.calls
    assert waits[1:3] == [7.0, following.RECONNECTS.max_stated_s]
    assert waits[0] < waits[3] < 1


async def test_a_stream_that_breaks_after_the_end_was_not_lost():
    client = ScriptedClient([state(1), end(2, ""), LOST])
    assert await read(client) == ("", 0)
    assert client.calls == ["stream"]


async def test_a_connection_that_stays_lost_fails_and_the_execution_is_stopped():
    client = ScriptedClient([state(1), LOST], [LOST])
    with pytest.raises(Unavailable):
        await read(client, patience_s=0.01)
    assert client.calls[-1] == "cancel r"


async def test_a_failure_that_waiting_does_not_mend_is_raised():
    client = ScriptedClient([state(1), LOST], [NotFound("no execution is named 'r'")])
    with pytest.raises(NotFound):
        await read(client)


async def test_a_call_whose_own_deadline_passed_has_not_lost_its_connection():
    client = ScriptedClient([state(1), DeadlineExceeded("120 s")], [state(2), end(3, "")])
    assert await read(client) == ("", 0)
    assert client.calls == ["stream", "follow r after 1"]


async def test_a_call_that_is_late_when_the_time_of_its_request_is_up_fails_and_the_execution_is_stopped(monkeypatch):
    request = execution_pb2.SystemRequest(request_id="r")
    request.hints.timeout.FromMilliseconds(1)
    monkeypatch.setattr("pagantic_common.client.async_client.RESPONSE_GRACE_S", 0.0)
    client = ScriptedClient([state(1), DeadlineExceeded("1 ms")], [DeadlineExceeded("1 ms")])
    with pytest.raises(DeadlineExceeded):
        await read(client, request)
    assert client.calls[-1] == "cancel r"


async def test_a_reader_that_leaves_stops_the_execution():
    client = ScriptedClient([state(1), text("one", 1), text("two", 1)])
    events = client.follow_to_end(REQUEST)
    await anext(events)
    await events.aclose()
    assert client.calls == ["stream", "cancel r"]


async def test_a_reader_that_is_cancelled_again_and_again_stops_the_execution_all_the_same():
    class Hanging(ScriptedClient):
        async def open_next(self):
            yield state(1)
            await asyncio.sleep(60)

        async def cancel(self, request_id, *, timeout_s=None):
            await asyncio.sleep(0.01)
            self.calls.append(f"cancel {request_id}")

    client = Hanging()
    reading = asyncio.create_task(events_of(client))
    await asyncio.sleep(0.01)
    while not reading.done():
        reading.cancel()
        await asyncio.sleep(0)
    await client.close()
    assert client.calls == ["stream", "cancel r"]


@pytest.mark.parametrize("what", ["r", execution_pb2.SystemRequest(request_id="r", background=True)])
async def test_an_execution_that_is_another_s_or_in_the_background_goes_on_when_its_reader_leaves(what):
    client = ScriptedClient([state(1), text("one", 1)])
    async with aclosing(client.follow_to_end(what)) as events:
        await anext(events)
    assert not [call for call in client.calls if "cancel" in call]


async def test_an_execution_that_runs_already_is_followed_from_its_beginning_or_from_a_place():
    client = ScriptedClient([state(1), text("one", 1), end(2, "one")])
    assert await read(client, "r") == ("one", 0)
    await read(client, "r", after_sequence=7)
    await read(client, after_sequence=7)
    assert client.calls == ["follow r after 0", "follow r after 7", "follow r after 7"]


async def test_a_decision_is_streamed_as_it_is():
    client = ScriptedClient([state(1), LOST])
    request = execution_pb2.SystemRequest(request_id="r", mode=execution_pb2.MODE_DECIDE)
    with pytest.raises(Unavailable):
        await read(client, request)
    assert client.calls == ["stream"]
    assert client.request == request


async def test_a_stream_in_the_background_goes_on_and_another_does_not():
    lost = [state(1), text("one ", 1), LOST]
    client = ScriptedClient(lost, [text("one ", 1), text("two", 1), end(2, "one two")])
    client._patience_s = 10.0
    request = execution_pb2.SystemRequest(request_id="r", background=True)
    events = [event async for event in client.stream(request)]
    assert "".join(event.content_delta.text for event in events) == "one two"
    for request in (REQUEST, execution_pb2.SystemRequest(background=True)):
        client = ScriptedClient(lost)
        client._patience_s = 10.0
        with pytest.raises(Unavailable):
            [event async for event in client.stream(request)]
        assert client.calls == ["stream"]


def test_the_blocking_client_tells_a_loss_between_the_events_around_it():
    scripted = ScriptedClient([state(1), text("one ", 1), LOST], [text("one ", 1), text("two", 1), end(2, "")])
    told = []
    with blocking(scripted) as client:
        for event in client.follow_to_end(REQUEST, on_lost=lambda failure: told.append(type(failure))):
            told.append(event.content_delta.text or event.sequence)  # noqa: PERF401 - losses come between
    assert told == [1, "one ", Unavailable, "two", 2]


def test_closing_a_blocking_generator_waits_until_the_execution_is_stopped():
    class Slow(ScriptedClient):
        async def cancel(self, request_id, *, timeout_s=None):
            await asyncio.sleep(0.05)
            self.calls.append(f"cancel {request_id}")

    scripted = Slow([state(1), text("one", 1), text("two", 1)])
    with blocking(scripted) as client:
        events = client.follow_to_end(REQUEST)
        next(events)
        events.close()
        assert scripted.calls[0] == "stream"
        assert scripted.calls[-1] == "cancel r"


# ---- streams that are cut anywhere ----------------------------------------------------------------------------------

STORED = st.sampled_from([state, begun, ended, discarded, lambda sequence: began(f"c{sequence}", sequence)])
WORDS = st.text("abc", min_size=1, max_size=4)
DELTAS = st.one_of(
    st.builds(lambda words: lambda sequence: text(words, sequence), WORDS),
    st.builds(lambda words: lambda sequence: thought(words, sequence), WORDS),
    st.builds(lambda words: lambda sequence: piece(words, sequence), WORDS),
    st.builds(lambda words: lambda sequence: piece(words, sequence, "c", "tool"), WORDS),
)


@st.composite
def executions(draw):
    """Draw the events of an execution up to its end."""
    events = [state(1)]
    for is_stored in draw(st.lists(st.booleans(), max_size=12)):
        sequence = events[-1].sequence
        events.append(draw(STORED)(sequence + 1) if is_stored else draw(DELTAS)(sequence))
    return [*events, end(events[-1].sequence + 1, draw(WORDS))]


class World(ScriptedClient):
    """An execution that goes on with its connections: each has the events of a number of places, and is then lost."""

    def __init__(self, events, places, recut):
        super().__init__()
        self.events, self.places, self.recut = events, list(places), recut
        self.at = 0

    async def follow_from(self, after):
        for event in self.since(after):
            yield event
        stop = self.places.pop(0) if self.places else len(self.events)
        while self.at < len(self.events):
            if self.at >= stop:
                raise LOST
            self.at += 1
            yield self.events[self.at - 1]

    def since(self, after):
        """Yield the stored events above a sequence, and the text since the last of them in one-character deltas."""
        shown = self.events[: self.at]
        last = max((event.sequence for event in shown if not is_streamed(event)), default=0)
        for event in shown:
            if not is_streamed(event):
                if event.sequence > after:
                    yield event
            elif event.sequence == last:
                yield from cut(event) if self.recut else [event]

    def _begin(self, _request):
        return self.copied(self.follow_from(0))

    def _follow(self, _request_id, after_sequence, _timeout_s):
        return self.copied(self.follow_from(after_sequence))

    async def copied(self, events):
        async for event in events:
            copy = event_pb2.ExecutionEvent()
            copy.CopyFrom(event)
            yield copy


def cut(event):
    """Return a delta as deltas of one character each."""
    kind = event.WhichOneof("event")
    field = "arguments_json" if kind == "tool_call_delta" else "text"
    words = getattr(getattr(event, kind), field)
    for start, stop in pairwise(range(len(words) + 1)):
        one = event_pb2.ExecutionEvent()
        one.CopyFrom(event)
        setattr(getattr(one, kind), field, words[start:stop])
        if start and kind == "tool_call_delta":
            one.tool_call_delta.ClearField("id")
            one.tool_call_delta.ClearField("name")
        yield one


def all_of(answer):
    names = ("parts", "client_calls", "text", "turn_text", "streamed_text", "response", "sequence", "waiting")
    return [answer.reasoning.text, *(getattr(answer, name) for name in names)]


PLACES = st.lists(st.integers(1, 14), max_size=4).map(sorted)


@given(executions(), PLACES, st.booleans())
@settings(max_examples=examples(200), deadline=None)
def test_a_stream_that_is_cut_anywhere_and_followed_gives_the_same_answer(events, places, recut):
    followed = asyncio.run(events_of(World(events, places, recut)))
    for left_out in (1, 0):  # before the response, too
        assert all_of(AnswerState.of(followed[: len(followed) - left_out])) == all_of(
            AnswerState.of(events[: len(events) - left_out])
        )


@given(executions(), PLACES, st.booleans())
@settings(max_examples=examples(200), deadline=None)
def test_an_answer_that_is_rewound_and_followed_by_hand_is_the_same(events, places, recut):
    async def follow():
        world, answer = World(events, places, recut), AnswerState()
        while answer.response is None:
            answer.rewind()
            try:
                async for event in world.follow("r", after_sequence=answer.sequence):
                    answer.take(event)
            except Unavailable:
                pass
        return answer

    assert all_of(asyncio.run(follow())) == all_of(AnswerState.of(events))


@given(st.lists(WORDS, min_size=1, max_size=6), st.integers(0, 6), PLACES)
@settings(max_examples=examples(100), deadline=None)
def test_an_inference_that_a_resume_repeats_leaves_no_text_of_its_first_try(words, written, places):
    before = [state(1), begun(2), text("let me see ", 2), ended(3), began("c", 4), begun(5)]
    first = [text(f"{word}?", 5) for word in words[:written]]
    again = [begun(7), *(text(word, 7) for word in words), ended(8)]
    content = end(9, "".join(words))
    resumed_answer = AnswerState.of(
        asyncio.run(events_of(World([*before, *first, resumed(6), *again, content], places, recut=True)))
    )
    assert all_of(resumed_answer) == all_of(AnswerState.of([*before, *again, content]))
