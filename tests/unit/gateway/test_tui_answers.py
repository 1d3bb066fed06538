"""What the terminal program makes of events, texts and choices, without a screen."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tui.screens.options import _number_in
from gateway.tui.widgets.approval import _described, _read_arguments, indented
from gateway.tui.widgets.growing import BLOCK_CHARS, MAX_SHOWN, first_block, shown_of
from gateway.tui.widgets.status import BAR_COLUMNS, meter_text
from gateway.tui.widgets.timeline import MAX_ROWS, latest_rows
from gateway.tui.widgets.turn import MAX_NOTES, describe_call, describe_notes
from gateway.tui.work.answer import MAX_EVENTS, Answer
from gateway.tui.work.choices import MAX_TEXT_BYTES, Choices, as_before, refusal_of
from gateway.tui.work.conversation import _has_end_of, title_from, turns_of
from gateway.tui.work.steps import Failure
from pagantic.common.v1 import message_pb2
from pagantic.inference.v1 import generation_pb2
from pagantic.orchestrator.v1 import approval_pb2, event_pb2, execution_pb2
from pagantic_common.client import CallPart, TextPart
from pagantic_common.domain.errors import ErrorCode, InvalidRequest, Unavailable
from pagantic_common.domain.text.terminal import visible_text
from pagantic_common.rpc.status import Unreachable


def said(text, sequence=1):
    return event_pb2.ExecutionEvent(sequence=sequence, content_delta=event_pb2.ContentDelta(text=text))


def began(call_id, sequence):
    start = event_pb2.ToolStart(tool_name="clock", tool_call_id=call_id)
    return event_pb2.ExecutionEvent(sequence=sequence, tool_start=start)


def completed(sequence=9, **fields):
    response = execution_pb2.SystemResponse(request_id="r", **fields)
    return event_pb2.ExecutionEvent(sequence=sequence, completed=event_pb2.Completed(response=response))


def answer_of(*events):
    answer = Answer("r")
    for event in events:
        answer.take(event)
    return answer


def test_a_discarded_attempt_leaves_its_calls_and_takes_its_texts():
    discarded = event_pb2.AttemptDiscarded(attempt=1, reason="not valid")
    event = event_pb2.ExecutionEvent(sequence=3, attempt_discarded=discarded)
    answer = answer_of(said("bad"), began("c1", 2), said("worse", 2), event, said("good", 3))
    assert [type(part) for part in answer.parts] == [CallPart, TextPart]
    assert answer.text == "good"
    assert answer.notes == ["attempt discarded: attempt 1: not valid"]


def test_the_timeline_s_latest_rows_count_their_time_from_the_first_event():
    events = [event_pb2.ExecutionEvent(sequence=number) for number in range(1, MAX_ROWS + 11)]
    for event in events:
        event.timestamp.FromMilliseconds(1_000 + event.sequence)
    rows = latest_rows(events)
    assert (len(rows), rows[0].sequence, rows[0].offset_ms) == (MAX_ROWS, 11, 10.0)
    assert [row.sequence for row in latest_rows(events[:3])] == [1, 2, 3]


def test_notes_and_progress_are_shortened():
    notes = describe_notes(["x" * 700, *["note"] * MAX_NOTES])
    assert notes.startswith("x" * 600 + " … (100 more characters)\nnote\n")
    assert notes.endswith("\n… 1 more note")
    call = CallPart("c1", "n" * 150, progress="p" * 700)
    assert describe_call(call) == f"… {'n' * 100} … (50 more characters)() {'p' * 600} … (100 more characters)"


@pytest.mark.parametrize(
    "wrong", ['{"a": "\\ud800"}', '{"a": 1e999}', '{"a": NaN}', '{"a": ' * 300 + "1" + "}" * 300, "[1]", "{"]
)
def test_changed_arguments_that_cannot_be_sent_are_refused(wrong):
    with pytest.raises(ValueError, match="arguments"):
        _read_arguments(wrong)


def test_a_cut_answer_says_so_once_and_other_warnings_stay():
    warnings = [{"code": "output_truncated", "message": "raise hints.max_tokens"}, {"code": "x", "message": "old"}]
    length = generation_pb2.FINISH_REASON_LENGTH
    answer = answer_of(completed(content="a", finish_reason=length, warnings=warnings))
    assert answer.notes == ["cut at its limit of tokens: the options (Ctrl+G) raise it", "warning: old"]
    large = [{"code": "output_too_large", "message": "cut at 9 bytes"}]
    answer = answer_of(completed(content="a", finish_reason=length, warnings=large))
    assert answer.notes == ["warning: cut at 9 bytes"], "more tokens would not help"


def test_a_bound_of_text_is_shown_and_of_events_kept_and_the_rest_is_known():
    answer = answer_of(said("x" * (MAX_SHOWN - 1)), said("yz"))
    text, left_out = shown_of(answer.parts[0])
    assert (text[-2:], left_out, len(text), answer.parts[0].length) == ("xy", 1, MAX_SHOWN, MAX_SHOWN + 1)
    many = answer_of(*(began(f"c{number}", number) for number in range(1, MAX_EVENTS + 3)))
    assert (len(many.events), many.events[0].sequence, many.events[-1].sequence) == (MAX_EVENTS, 1, MAX_EVENTS + 2)


@given(st.text(alphabet="ab \n", max_size=3 * BLOCK_CHARS))
def test_blocks_end_at_lines_or_words_and_lose_nothing(text):
    blocks, rest = [], text
    while length := first_block(rest):
        assert BLOCK_CHARS < length <= 2 * BLOCK_CHARS
        blocks.append(rest[:length])
        rest = rest[length:]
    assert "".join(blocks) + rest == text


def test_a_text_without_an_end_is_cut_anywhere():
    assert first_block("x" * (2 * BLOCK_CHARS + 1)) == 2 * BLOCK_CHARS
    assert first_block("x" * BLOCK_CHARS + "\n" + "x" * 2 * BLOCK_CHARS) == BLOCK_CHARS + 1


def test_the_meter_is_a_bar_with_numbers():
    assert meter_text(0, 0) == ""
    assert meter_text(1, 100_000) == f"context █{'░' * (BAR_COLUMNS - 1)} 1 of 100,000 tokens, 0%"
    assert meter_text(2048, 4096) == "context █████░░░░░ 2,048 of 4,096 tokens, 50%"
    assert meter_text(9000, 4096).startswith("context ██████████ 9,000")


def test_characters_that_steer_are_written_by_name_and_others_stay():
    assert visible_text("\x1b[1m\x00\x7f\x9b\u202e\u200b\U000e0041") == "␛[1m␀␡«U+009B»«U+202E»«U+200B»«U+E0041»"
    hidden = "\u3164\u2800\u115f\u034f\ufe00\U000e0100\U000e0fff\u2028\ud800"
    assert visible_text(hidden) == "".join(f"«U+{ord(character):04X}»" for character in hidden)
    for plain in ("a\n\tb", "Grüße 你好 مرحبا \u06dd", "👩\u200d👩\u200d👧 ❤\ufe0f"):
        assert visible_text(plain) == plain
    assert visible_text("a\r\nb\rc") == "a\nb␍c"


@given(st.text())
def test_no_control_is_left(text):
    assert not any(ord(character) < 0x20 and character not in "\n\t" for character in visible_text(text))


def test_a_text_is_refused_by_its_bytes():
    assert refusal_of("ä" * (MAX_TEXT_BYTES // 2)) == ""
    assert "`pagantic ingest COLLECTION FILE`" in refusal_of("ä" * (MAX_TEXT_BYTES // 2 + 1))


def test_choices_become_a_request_in_the_background():
    choices = Choices(tools=("clock",), collection="docs", cites=True, asks=True, reasoning="off", temperature=0.0)
    request = choices.request("hi", "chat-1")
    assert (request.background, request.session_id, list(request.tools)) == (True, "chat-1", ["clock"])
    assert request.context.collection == "docs"
    assert request.output.HasField("citations")
    assert request.tool_rules[0].action == approval_pb2.TOOL_ACTION_ASK
    assert request.hints.HasField("temperature")
    plain = Choices().request("hi", "chat-1")
    assert plain.hints.tool_choice.mode == message_pb2.TOOL_CHOICE_MODE_NONE
    assert not plain.HasField("context")
    assert not plain.tool_rules


def test_a_message_that_is_sent_again_has_its_id_again_and_another_one_has_not():
    first = Choices().request("hi", "chat-1")
    again, other = Choices().request("hi", "chat-1"), Choices(asks=True).request("hi", "chat-1")
    assert as_before(again, first)
    assert again == first
    assert not as_before(other, first)
    assert other.request_id != first.request_id
    assert not as_before(first, None)


def test_stored_messages_become_turns_with_the_results_of_their_calls():
    call = message_pb2.ToolCall(id="c1", name="clock", arguments_json="{}")
    messages = [
        message_pb2.Message(role=message_pb2.ROLE_SYSTEM, content="Be short."),
        message_pb2.Message(role=message_pb2.ROLE_USER, content="time?"),
        message_pb2.Message(role=message_pb2.ROLE_ASSISTANT, tool_calls=[call], reasoning="hm"),
        message_pb2.Message(role=message_pb2.ROLE_TOOL, tool_call_id="c1", content="noon"),
        message_pb2.Message(role=message_pb2.ROLE_ASSISTANT, content="Noon."),
        message_pb2.Message(role=message_pb2.ROLE_USER, content="thanks"),
    ]
    turns = turns_of(messages)
    assert [turn.said for turn in turns] == ["", "time?", "thanks"]
    assert turns[1].answer.parts == [CallPart("c1", "clock", "{}", "noon", has_ended=True), TextPart("Noon.")]
    assert turns[1].answer.reasoning.text == "hm"


@pytest.mark.parametrize(
    ("content", "state", "is_its"),
    [
        ("Noon.", execution_pb2.LIFECYCLE_STATE_COMPLETE, True),
        ("Noon.", execution_pb2.LIFECYCLE_STATE_CANCELLED, True),
        ("Noon.", execution_pb2.LIFECYCLE_STATE_ERROR, False),
        ("", execution_pb2.LIFECYCLE_STATE_CANCELLED, False),
        ("Noon", execution_pb2.LIFECYCLE_STATE_CANCELLED, False),
    ],
)
def test_the_newest_execution_belongs_to_the_last_turn_only_with_its_whole_answer(content, state, is_its):
    [turn] = turns_of([message_pb2.Message(role=message_pb2.ROLE_ASSISTANT, content="Noon.")])
    execution = execution_pb2.Execution(state={"current": state}, response={"content": content})
    assert _has_end_of(turn, execution) is is_its


def test_a_title_is_the_first_line_of_the_first_message():
    assert title_from("  lamps \nand chairs") == "lamps "
    assert len(title_from("x" * 200)) == 80


def test_failures_name_the_keys_of_the_program():
    failure = Failure.of(InvalidRequest("too long\x1b[1m", code=ErrorCode.INFERENCE_CONTEXT_EXCEEDED), "r-1")
    assert failure.in_short == (
        "INFERENCE_CONTEXT_EXCEEDED: too long␛[1m\nnext: shorten the text, or begin another conversation with Ctrl+N"
    )
    assert "in another terminal" in Failure.of(Unreachable("no answer")).next_step
    assert (
        Failure.of(Unavailable("busy")).next_step
        == "see which service is down with `pagantic status`; then send it again"
    )


def test_a_call_that_waits_tells_what_in_its_arguments_others_wrote():
    spans = [{"argument": "to[0]", "source": "tool inbox (c1)", "text": "eve\u202e@evil.example"}]
    described = _described(approval_pb2.Approval(arguments_json='{"to": ["x"]}', spans=spans))
    assert described.splitlines()[-1] == r"to[0]: 'eve\u202e@evil.example' came from tool inbox (c1)"


def test_arguments_beyond_the_panel_are_counted():
    described = _described(approval_pb2.Approval(arguments_json=f'{{"text": "{"x" * 30_000}"}}'))
    assert described.endswith("more characters are not seen here: `pagantic approvals list` shows them")


def test_arguments_are_laid_out_and_hide_nothing():
    assert indented('{"a":"\\u202e","b":[1]}') == '{\n  "a": "\\u202e",\n  "b": [\n    1\n  ]\n}'
    assert indented("no\x1b JSON") == "no\\u001b JSON"


def test_numbers_of_options_are_read_within_their_bounds():
    assert _number_in("", "temperature", 2.0) is None
    assert _number_in("0.5", "temperature", 2.0) == 0.5


@pytest.mark.parametrize("wrong", ["x", "-1", "3", "nan", "inf"])
def test_a_number_beyond_its_bounds_is_named(wrong):
    with pytest.raises(ValueError, match="temperature"):
        _number_in(wrong, "temperature", 2.0)
