"""What `pagantic chat` has on stdout when its answer comes in parts, more than once, or not at all."""

import signal

import pytest

from gateway.cli.answering import lost_connections
from gateway.cli.answering.answers import stream_answer, wait_for_answer
from gateway.cli.answering.endings import unwinding
from pagantic.orchestrator.v1 import event_pb2, execution_pb2
from pagantic_common.domain.errors import Unavailable
from tests.unit.gateway.test_lost_connections import ScriptedClient, end, state, text

LOST = Unavailable("the connection was lost")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(lost_connections, "FIRST_WAIT_S", 0.001)


def begun(sequence):
    return event_pb2.ExecutionEvent(sequence=sequence, inference_start=event_pb2.InferenceStart())


def ended(sequence):
    return event_pb2.ExecutionEvent(sequence=sequence, inference_end=event_pb2.InferenceEnd())


def resumed(sequence):
    return event_pb2.ExecutionEvent(sequence=sequence, resumed=event_pb2.Resumed())


@pytest.fixture
def printed(capsys):
    def run(*streams):
        stream_answer(ScriptedClient(*streams), execution_pb2.SystemRequest(request_id="r"), 60.0)
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
    stream_answer(shown, execution_pb2.SystemRequest(request_id="r"), 60.0)
    response = wait_for_answer(quiet, execution_pb2.SystemRequest(request_id="r"), 60.0)
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
