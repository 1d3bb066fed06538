"""What `pagantic chat` has on stdout when its answer comes in parts, more than once, or not at all."""

import signal
from dataclasses import replace

import pytest

from gateway.cli.answering.answers import stream_answer, unwinding, wait_for_answer
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.client import following
from pagantic_common.domain.errors import Unavailable
from tests.unit.client.scripted_streams import ScriptedClient, begun, blocking, end, ended, resumed, state, text

LOST = Unavailable("the connection was lost")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(following, "RECONNECTS", replace(following.RECONNECTS, first_s=0.001))


@pytest.fixture
def printed(capsys):
    def run(*streams):
        with blocking(ScriptedClient(*streams)) as client:
            stream_answer(client, execution_pb2.SystemRequest(request_id="r"))
        return capsys.readouterr().out

    return run


def test_an_answer_that_begins_again_after_a_restart_begins_on_a_line_of_its_own(printed):
    lost = [begun(1), text("one ", 1), LOST]
    again = [resumed(2), begun(3), text("one ", 3), text("two", 3), ended(4), end(5, "one two")]
    assert printed(lost, again) == "one \none two\n"


def test_a_turn_that_had_ended_is_not_written_again_after_a_restart(printed):
    events = [begun(1), text("one two", 1), ended(2), LOST]
    assert printed(events, [resumed(3), end(4, "one two")]) == "one two\n"


def test_of_an_answer_that_ended_while_the_connection_was_lost_the_rest_is_written(printed):
    turn = [begun(1), text("Let me see. ", 1), ended(2)]
    lost = [begun(3), text("one ", 3), LOST]
    assert printed([*turn, *lost], [ended(4), end(5, "one two")]) == "Let me see. one two\n"


def test_an_answer_that_differs_from_what_was_written_is_whole_on_a_line_of_its_own(printed):
    assert printed([begun(1), text("one ", 1), LOST], [ended(2), end(3, "[redacted] two")]) == "one \n[redacted] two\n"


def test_an_answer_of_which_nothing_streamed_follows_the_turn_before_it(printed):
    turn = [begun(1), text("Let me see.", 1), ended(2), begun(3), ended(4)]
    assert printed([*turn, end(5, "one")]) == "Let me see.\none\n"


def test_an_answer_that_is_not_shown_is_waited_for_over_lost_connections_with_the_same_request():
    shown, quiet = ScriptedClient([state(1), end(2, "one")]), ScriptedClient([state(1), LOST], [end(2, "one")])
    with blocking(shown) as client:
        stream_answer(client, execution_pb2.SystemRequest(request_id="r"))
    with blocking(quiet) as client:
        response = wait_for_answer(client, execution_pb2.SystemRequest(request_id="r"))
    assert response.content == "one"
    assert quiet.request == shown.request


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_ends_the_program_unwinds_it(number):
    before = signal.getsignal(number)
    signal.signal(number, signal.SIG_DFL)
    try:
        with pytest.raises(SystemExit) as left, unwinding():
            signal.raise_signal(number)
        assert left.value.code == 128 + number
        assert signal.getsignal(number) is signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN)
        with unwinding():
            signal.raise_signal(number)
    finally:
        signal.signal(number, before)
