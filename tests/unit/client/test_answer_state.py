"""The state of an answer: what its events and its response make of it, and its news for readers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagantic.common.v1 import message_pb2
from pagantic.orchestrator.v1 import approval_pb2, event_pb2, execution_pb2
from pagantic_common.client import AnswerState, CallPart, Delta, DeltaKind, TextPart
from pagantic_common.domain.errors import ErrorCode
from tests.unit.client.scripted_streams import began, begun, discarded, ended, piece, resumed, state, thought
from tests.unit.client.scripted_streams import text as said_at

CALLS = [message_pb2.ToolCall(id=f"c{n}", name="clock", arguments_json='{"a": 1}') for n in range(2)]


def said(text, sequence=1):
    return said_at(text, sequence)


def completed(sequence=9, **fields):
    response = execution_pb2.SystemResponse(request_id="r", **fields)
    return event_pb2.ExecutionEvent(sequence=sequence, completed=event_pb2.Completed(response=response))


def answer_of(*events):
    return AnswerState.of(events)


def deltas_of(answer, *events):
    return [delta for event in events for delta in answer.take(event)]


def test_texts_stand_before_and_after_the_calls_of_tools():
    record = execution_pb2.ToolCallRecord(id="c1", name="clock", arguments_json="{}", result="noon")
    answer = answer_of(
        said("Let me look. "), began("c1", 2), said("Noon.", 2), completed(content="Noon.", tool_calls_made=[record])
    )
    call = CallPart("c1", "clock", "{}", "noon", has_ended=True)
    assert answer.parts == [TextPart("Let me look. "), call, TextPart("Noon.")]


def test_a_rewound_answer_gets_the_texts_after_the_last_stored_event_again():
    answer = answer_of(said("one "), thought("why ", 1), began("c1", 2), said("two ", 2), thought("because", 2))
    answer.rewind()
    assert (answer.text, answer.reasoning.text, answer.sequence) == ("one ", "why ", 2)
    answer.take(said("two ", 2))
    answer.take(said("three", 2))
    assert answer.text == "one two three"


def test_a_response_that_says_otherwise_than_its_stream_wins():
    answer = answer_of(said("my key is 123"), completed(content="my key is [redacted]"))
    assert answer.text == "my key is [redacted]"


def test_an_answer_that_did_not_stream_is_shown_though_an_earlier_text_has_its_words():
    answer = answer_of(said("Noon? I look. "), began("c1", 2), completed(content="Noon"))
    assert [part.text for part in answer.parts if isinstance(part, TextPart)] == ["Noon? I look. ", "Noon"]


@pytest.mark.parametrize("content", ["", "is 123", "[redacted]"])
def test_a_redacted_answer_replaces_what_streamed_after_the_last_call(content):
    answer = answer_of(said("Let me look. "), began("c1", 2), said("my key is 123", 2), completed(content=content))
    assert answer.text == "Let me look. " + content


def test_a_failure_without_a_text_leaves_what_streamed():
    answer = answer_of(said("partial"), completed(error={"message": "stopped"}))
    assert answer.text == "partial"


def test_a_call_waits_until_it_is_resolved_or_the_execution_ends():
    approval = approval_pb2.Approval(tool_call_id="c1", tool_name="clock", arguments_json='{"a": 1}')
    asked = event_pb2.ExecutionEvent(sequence=2, approval_requested=event_pb2.ApprovalRequested(approval=approval))
    answer = answer_of(asked)
    assert list(answer.waiting) == ["c1"]
    resolved = approval_pb2.Approval()
    resolved.CopyFrom(approval)
    resolved.resolution.arguments_json = '{"a": 2}'
    answer.take(event_pb2.ExecutionEvent(sequence=3, approval_resolved=event_pb2.ApprovalResolved(approval=resolved)))
    assert (answer.waiting, answer.parts[0].arguments_json) == ({}, '{"a": 2}')
    answer.take(asked)
    answer.take(completed())
    assert answer.waiting == {}


@given(st.lists(st.text(max_size=30), max_size=8), st.integers(0, 60))
def test_a_cut_text_is_as_if_the_rest_had_not_come(pieces, length):
    part = TextPart()
    for words in pieces:
        part.add(words)
    part.cut(length)
    assert part.text == "".join(pieces)[:length]


def test_an_event_of_a_newer_version_is_passed_over():
    assert answer_of(event_pb2.ExecutionEvent(sequence=1)).parts == []


def test_the_meter_counts_the_newest_inference_until_the_response_tells():
    end = event_pb2.InferenceEnd(tokens_in=10, tokens_out=3)
    answer = answer_of(event_pb2.ExecutionEvent(sequence=2, inference_end=end))
    assert answer.usage(100) == (13, 100)
    answer.take(completed(token_usage={"context_tokens": 20, "context_window": 50}))
    assert answer.usage(100) == (20, 50)


def test_a_discarded_attempt_leaves_its_calls_and_takes_its_texts():
    answer = answer_of(said("bad"), began("c1", 2), said("worse", 2), thought("hm", 2), piece("{", 2, "c", "clock"))
    assert deltas_of(answer, discarded(3)) == [Delta(DeltaKind.DISCARDED, "not valid", 1)]
    answer.take(said("good", 3))
    assert [type(part) for part in answer.parts] == [CallPart, TextPart]
    assert (answer.text, answer.reasoning.text, answer.client_calls) == ("good", "", [])


def test_an_attempt_that_streamed_nothing_is_discarded_without_news():
    assert deltas_of(answer_of(state(1), began("c1", 2)), discarded(3)) == []


def test_a_resume_voids_the_text_of_an_unfinished_inference_alone():
    answer = answer_of(begun(1), said("one. "), ended(2), begun(3), said("tw", 3))
    assert deltas_of(answer, resumed(4)) == [Delta(DeltaKind.REPEATED, "the orchestrator resumed the request")]
    assert answer.text == "one. "
    assert deltas_of(answer, resumed(5), begun(6), said("two", 6)) == [Delta(DeltaKind.TEXT, "two")]
    assert (answer.text, answer.turn_text) == ("one. two", "two")
    assert deltas_of(answer, ended(7), resumed(8)) == []
    assert answer.text == "one. two"


def test_the_pieces_of_client_calls_become_calls():
    answer = AnswerState()
    events = [piece("", 1, "c0", "clock"), piece('{"a"', 1), piece(": 1}", 1)]
    assert [(delta.kind, delta.text, delta.name) for delta in deltas_of(answer, *events)] == [
        (DeltaKind.CALL, "", "clock"),
        (DeltaKind.CALL, '{"a"', ""),
        (DeltaKind.CALL, ": 1}", ""),
    ]
    assert [(call.call_id, call.name, call.arguments.text) for call in answer.client_calls] == [
        ("c0", "clock", '{"a": 1}')
    ]
    assert answer.parts == []


def rest_of(*events, **fields):
    answer = answer_of(*events, completed(**fields))
    return [(delta.kind.name, delta.text, delta.call_id) for delta in answer.rest()]


def test_the_rest_is_the_part_of_the_response_that_did_not_stream():
    whole = [("REASONING", "hm", ""), ("TEXT", "one two", ""), *(("CALL", '{"a": 1}', f"c{n}") for n in range(2))]
    fields = {"content": "one two", "reasoning": "hm", "tool_calls": CALLS}
    assert rest_of(**fields) == whole
    assert rest_of(thought("h", 1), **fields) == [("REASONING", "m", ""), *whole[1:]]
    assert rest_of(thought("hm", 1), said("one "), **fields) == [("TEXT", "two", ""), *whole[2:]]
    assert rest_of(thought("hm", 1), said("one two"), piece('{"a"', 1, "c0", "clock"), **fields) == [
        ("CALL", ": 1}", ""),
        whole[3],
    ]
    assert (
        rest_of(thought("hm", 1), said("one two"), *(piece('{"a": 1}', 1, f"c{n}", "clock") for n in "01"), **fields)
        == []
    )
    assert AnswerState().rest() == []


def test_the_rest_of_a_text_follows_the_newest_inference():
    events = [begun(1), said("let me see. "), ended(2), begun(3), said("one ", 3)]
    assert rest_of(*events, content="one two") == [("TEXT", "two", "")]


@pytest.mark.parametrize("content", ["[redacted]", "ne", "", "one "])
def test_a_text_that_was_changed_or_is_whole_has_no_rest(content):
    assert rest_of(said("one "), content=content) == []


def test_a_reader_may_have_other_words_for_the_text():
    answer = answer_of(said('{"a": '), completed(content='{"a": 1', structured_output_json='{"a": 1}'))
    assert [delta.text for delta in answer.rest('{"a": 1}')] == ["1}"]


def test_the_end_has_the_model_the_time_and_the_error():
    inferred = event_pb2.ExecutionEvent(sequence=2, inference_end=event_pb2.InferenceEnd(model="small"))
    last = completed(error={"code": "ERROR_CODE_CANCELLED_SIGNAL", "message": "stopped"})
    last.duration.FromMilliseconds(1500)
    answer = answer_of(inferred, ended(3))
    assert (answer.model, answer.duration_s, answer.error) == ("small", None, None)
    answer.take(last)
    assert (answer.duration_s, answer.error.code, answer.was_stopped) == (1.5, ErrorCode.CANCELLED_SIGNAL, True)
