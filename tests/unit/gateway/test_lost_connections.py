"""`pagantic chat` and `pagantic ask` go on with an answer whose connection is lost, and stop what they leave."""

import pytest

from gateway.cli.answering import lost_connections
from gateway.cli.answering.lost_connections import events_to_end
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.domain.errors import DeadlineExceeded, InvalidRequest, NotFound, Overloaded, Unavailable
from tests.unit.gateway.scripted_streams import ScriptedStreams, end, state, text


class ScriptedClient(ScriptedStreams):
    """Also takes the cancel of an execution that has ended."""

    def cancel(self, request_id, *, timeout_s):
        assert timeout_s < 10, "who leaves does not wait for a network that is away"
        self.calls.append(f"cancel {request_id}")
        raise NotFound("it has ended")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(lost_connections, "FIRST_WAIT_S", 0.001)


LOST = Unavailable("the connection was lost")


def read(client, request=None, **options):
    losses = []
    events = events_to_end(
        client, request or execution_pb2.SystemRequest(request_id="r"), lambda: losses.append(1), 60.0, **options
    )
    return "".join(event.content_delta.text for event in events), len(losses)


def test_an_answer_goes_on_where_its_connection_was_lost_and_no_text_comes_twice():
    client = ScriptedClient(
        [state(1), text("one ", 1), text("tw", 1), LOST],
        [text("one two", 1), LOST],
        [text("one ", 1), text("two ", 1), text("three", 1), end(2, "one two three")],
    )
    assert read(client) == ("one two three", 2)
    assert client.calls == ["stream", "follow r after 1", "follow r after 1"]
    assert client.request.background
    assert client.request.hints.timeout.seconds == 60


def test_the_text_after_a_later_stored_event_is_whole():
    client = ScriptedClient([state(1), text("one ", 1), LOST], [state(2), text("two", 2), end(3, "two")])
    assert read(client) == ("one two", 1)


def test_a_stream_that_ends_early_is_a_lost_connection_and_one_loss_is_told_once():
    client = ScriptedClient([state(1)], [LOST], [LOST], [end(2, "")])
    assert read(client) == ("", 1)


def test_a_request_keeps_the_time_that_it_states():
    request = execution_pb2.SystemRequest(request_id="r")
    request.hints.timeout.seconds = 5
    client = ScriptedClient([state(1), end(2, "")])
    read(client, request)
    assert client.request.hints.timeout.seconds == 5
    assert client.calls == ["stream"], "what has ended is not cancelled"


@pytest.mark.parametrize(
    ("failure", "calls"),
    [
        (InvalidRequest("no"), ["stream"]),
        (Overloaded("full"), ["stream"]),
        (LOST, ["stream", "cancel r"]),
        (DeadlineExceeded("late"), ["stream", "cancel r"]),
    ],
)
def test_a_request_that_nobody_took_fails_at_once_and_one_that_may_run_is_stopped(failure, calls):
    client = ScriptedClient([failure])
    with pytest.raises(type(failure)):
        read(client)
    assert client.calls == calls


def test_an_orchestrator_that_is_overloaded_when_the_connection_is_back_is_left_alone_as_long_as_it_says(monkeypatch):
    waits = []
    monkeypatch.setattr(lost_connections.time, "sleep", waits.append)
    full = [Overloaded("full", retry_after_s=after_s) for after_s in (7.0, 1e9, None)]
    client = ScriptedClient([state(1), LOST], *([error] for error in full), [end(2, "")])
    assert read(client) == ("", 1)
    assert "cancel r" not in client.calls
    assert waits[1:3] == [7.0, lost_connections.MAX_STATED_WAIT_S]
    assert waits[0] < waits[3] < 1


def test_a_stream_that_breaks_after_the_end_was_not_lost():
    client = ScriptedClient([state(1), end(2, ""), LOST])
    assert read(client) == ("", 0)
    assert client.calls == ["stream"]


def test_a_connection_that_stays_lost_fails_and_the_execution_is_stopped():
    client = ScriptedClient([state(1), LOST], [LOST])
    with pytest.raises(Unavailable):
        read(client, patience_s=0.01)
    assert client.calls[-1] == "cancel r"


def test_who_leaves_stops_the_execution():
    client = ScriptedClient([state(1), text("one", 1), text("two", 1)])
    events = events_to_end(client, execution_pb2.SystemRequest(request_id="r"), lambda: None, 60.0)
    next(events)
    events.close()
    assert client.calls == ["stream", "cancel r"]
