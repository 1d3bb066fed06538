"""An answer is followed to its end over connections that are lost."""

import pytest

from gateway.cli.answering import lost_connections
from gateway.tui.work.answer import Answer
from gateway.tui.work.following import follow_to_end
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.domain.errors import DeadlineExceeded, NotFound, Overloaded, Unavailable
from pagantic_common.rpc.status import Unreachable
from tests.unit.gateway.scripted_streams import ScriptedStreams, end, state, text

REQUEST = execution_pb2.SystemRequest(request_id="r")


class ScriptedClient(ScriptedStreams):
    """Gives its streams asynchronously."""

    async def open_next(self):
        for event in super().open_next():
            yield event


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(lost_connections, "FIRST_WAIT_S", 0.001)


async def follow(client, request=REQUEST, **options):
    answer, changes = Answer("r"), []
    await follow_to_end(client, answer, request, changes.append, **options)
    return answer, changes


async def test_after_a_loss_the_texts_since_the_last_stored_event_are_not_twice():
    client = ScriptedClient(
        [state(1), text("one ", 1), Unavailable("lost")], [text("one ", 1), text("two", 1), end(2, "one two")]
    )
    answer, changes = await follow(client)
    assert client.calls == ["stream", "follow r after 1"]
    assert answer.text == "one two"
    assert changes == [False, False, True, False, False, False]


async def test_a_text_stays_until_the_connection_is_back():
    client = ScriptedClient([state(1), text("one ", 1), Unavailable("lost")], [Unavailable("lost")])
    answer = Answer("r")
    with pytest.raises(Unavailable):
        await follow_to_end(client, answer, REQUEST, lambda _: None, patience_s=0.01)
    assert answer.text == "one "


async def test_a_call_whose_own_deadline_passed_has_not_lost_its_connection():
    client = ScriptedClient([state(1), DeadlineExceeded("120 s")], [state(2), end(3, "")])
    _, changes = await follow(client)
    assert client.calls == ["stream", "follow r after 1"]
    assert changes == [False, False, False]


async def test_an_orchestrator_that_is_overloaded_when_the_connection_is_back_is_asked_again():
    client = ScriptedClient([state(1), Unavailable("lost")], [Overloaded("full")], [end(2, "done")])
    answer, changes = await follow(client)
    assert answer.text == "done"
    assert changes == [False, True, True, False]


async def test_a_stream_that_ends_early_is_followed():
    client = ScriptedClient([state(1)], [end(2, "done")])
    answer, _ = await follow(client)
    assert answer.text == "done"


@pytest.mark.parametrize("failure", [Unreachable("nothing answers"), Unavailable("drains"), DeadlineExceeded("1 s")])
async def test_a_request_of_which_no_event_came_fails_at_once(failure):
    client = ScriptedClient([failure])
    with pytest.raises(type(failure)):
        await follow(client)
    assert client.calls == ["stream"]


async def test_a_failure_that_waiting_does_not_mend_is_raised():
    client = ScriptedClient([state(1), Unavailable("lost")], [NotFound("no execution is named 'r'")])
    with pytest.raises(NotFound):
        await follow(client)


async def test_an_execution_that_runs_already_is_followed_from_its_beginning():
    client = ScriptedClient([state(1), text("one", 1), end(2, "one")])
    answer, _ = await follow(client, None)
    assert client.calls == ["follow r after 0"]
    assert answer.text == "one"
