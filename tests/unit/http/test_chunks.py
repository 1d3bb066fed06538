"""The stream of a choice: which chunks its events become."""

from dataclasses import replace

import pytest

from gateway.http.openai.answers import ChoiceChunks, Heading, usage_chunk
from pagantic.common.v1 import error_pb2, message_pb2, usage_pb2
from pagantic.inference.v1 import generation_pb2
from pagantic.orchestrator.v1 import event_pb2, execution_pb2
from pagantic_common.domain.errors import Aborted, ErrorCode, PaganticError

HEADING = Heading("chatcmpl-1", "m", 7)
STOP = generation_pb2.FINISH_REASON_STOP
SCHEMA_ANSWER = '{"a":1}'


def content(text):
    return event_pb2.ExecutionEvent(content_delta=event_pb2.ContentDelta(text=text))


def reasoning(text):
    return event_pb2.ExecutionEvent(reasoning_delta=event_pb2.ReasoningDelta(text=text))


def call(index, arguments, **fields):
    delta = generation_pb2.ToolCallDelta(index=index, arguments_json=arguments, **fields)
    return event_pb2.ExecutionEvent(tool_call_delta=delta)


def discarded():
    return event_pb2.ExecutionEvent(attempt_discarded=event_pb2.AttemptDiscarded(attempt=1, reason="no JSON"))


def completed(**fields):
    fields.setdefault("finish_reason", STOP)
    response = execution_pb2.SystemResponse(request_id="r", **fields)
    return event_pb2.ExecutionEvent(completed=event_pb2.Completed(response=response))


def failed(code, details_json="", **fields):
    error = error_pb2.SystemError(code=code, message="it is broken", details_json=details_json)
    return completed(error=error, **fields)


def chunks_of(*events, ignored=()):
    choice = ChoiceChunks(HEADING, 1, ignored)
    return [chunk for event in events for chunk in choice.of(event)]


def choices_of(*events):
    return [chunk["choices"][0] for chunk in chunks_of(*events)]


def deltas_of(*events):
    """Return what the client gets, without the last chunk, which says why the answer ended."""
    *deltas, last = [choice["delta"] for choice in choices_of(*events)]
    assert last == {}
    return deltas


def test_every_chunk_has_the_heading_and_the_index_of_its_choice():
    [first] = ChoiceChunks(HEADING, 1, ()).first()
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    for chunk in [first, *chunks_of(content("a"), completed(content="a"))]:
        assert (chunk["id"], chunk["model"], chunk["created"]) == ("chatcmpl-1", "m", 7)
        assert (chunk["object"], chunk["choices"][0]["index"]) == ("chat.completion.chunk", 1)


def test_text_and_reasoning_are_sent_as_they_come_and_once():
    events = [reasoning("hm"), content("a"), content("b"), completed(content="ab", reasoning="hm")]
    assert deltas_of(*events) == [{"reasoning_content": "hm"}, {"content": "a"}, {"content": "b"}]


def test_text_that_was_not_streamed_is_sent_at_the_end():
    assert deltas_of(completed(content="ab")) == [{"content": "ab"}]
    structured = completed(content=SCHEMA_ANSWER, structured_output_json=SCHEMA_ANSWER)
    assert deltas_of(structured) == [{"content": SCHEMA_ANSWER}]
    assert deltas_of(completed(content="b", earlier_content="a")) == [{"content": "ab"}]
    assert deltas_of(completed(content="ab", reasoning="hm")) == [{"reasoning_content": "hm"}, {"content": "ab"}]
    assert deltas_of(completed()) == []


def test_the_first_piece_of_a_call_names_it_and_the_others_have_its_index():
    calls = [message_pb2.ToolCall(id="c1", name="clock", arguments_json="{}")]
    events = [call(0, "{", id="c1", name="clock"), call(0, "}"), call(1, "", id="c2", name="lamp")]
    end = completed(tool_calls=calls, finish_reason=generation_pb2.FINISH_REASON_TOOL)
    assert [delta["tool_calls"] for delta in deltas_of(*events, end)] == [
        [{"index": 0, "id": "c1", "type": "function", "function": {"name": "clock", "arguments": "{"}}],
        [{"index": 0, "function": {"arguments": "}"}}],
        [{"index": 1, "id": "c2", "type": "function", "function": {"name": "lamp", "arguments": ""}}],
    ]
    assert choices_of(*events, end)[-1]["finish_reason"] == "tool_calls"


def test_calls_that_were_not_streamed_are_sent_at_the_end():
    calls = [message_pb2.ToolCall(id=f"c{index}", name="clock", arguments_json="{}") for index in (0, 1)]
    [delta] = deltas_of(completed(tool_calls=calls, finish_reason=generation_pb2.FINISH_REASON_TOOL))
    assert [(one["index"], one["id"], one["function"]["name"]) for one in delta["tool_calls"]] == [
        (0, "c0", "clock"),
        (1, "c1", "clock"),
    ]


@pytest.mark.parametrize("sent", [content("a"), reasoning("hm"), call(0, "{}", id="c", name="clock")])
def test_an_attempt_that_is_discarded_after_its_text_was_sent_ends_the_stream(sent):
    with pytest.raises(Aborted, match="attempt 1 was discarded after its text was sent: no JSON"):
        chunks_of(sent, discarded())


def test_an_attempt_that_is_discarded_before_anything_was_sent_is_no_news():
    assert deltas_of(discarded(), content("b"), completed(content="b")) == [{"content": "b"}]


def test_other_events_are_no_chunks():
    start = event_pb2.ExecutionEvent(inference_start=event_pb2.InferenceStart(message_count=1))
    assert chunks_of(start, event_pb2.ExecutionEvent()) == []


@pytest.mark.parametrize(
    "end",
    [
        completed(content="a", finish_reason=generation_pb2.FINISH_REASON_LENGTH),
        failed(error_pb2.ERROR_CODE_INFERENCE_OUTPUT_TRUNCATED, content="a"),
    ],
)
def test_an_answer_that_a_limit_cut_ends_with_the_reason_length(end):
    *_, last = choices_of(content("a"), end)
    assert (last["finish_reason"], last["delta"]) == ("length", {})


def test_the_failure_of_a_response_is_raised():
    with pytest.raises(PaganticError, match="it is broken") as raised:
        chunks_of(content("a"), failed(error_pb2.ERROR_CODE_INFERENCE_ENGINE_ERROR))
    assert raised.value.code is ErrorCode.INFERENCE_ENGINE_ERROR


def test_only_the_last_chunk_tells_why_and_what_was_ignored():
    first, last = chunks_of(content("a"), completed(content="a"), ignored=["user"])
    assert (first["choices"][0]["finish_reason"], last["choices"][0]["finish_reason"]) == (None, "stop")
    assert "pagantic" not in first
    assert last["pagantic"] == {"request_id": "r", "request_ids": ["r"], "ignored": ["user"]}


def test_log_probabilities_are_in_the_last_chunk():
    top = generation_pb2.TokenLogprob(piece=b"b", logprob=-2.0)
    token = generation_pb2.TokenLogprob(piece="ü".encode(), logprob=-1.0, top=[top])
    *_, last = choices_of(content("ü"), completed(content="ü", logprobs=[token]))
    assert last["logprobs"]["content"] == [
        {
            "token": "ü",
            "bytes": [0xC3, 0xBC],
            "logprob": -1.0,
            "top_logprobs": [{"token": "b", "bytes": [98], "logprob": -2.0}],
        }
    ]


def test_the_usage_counts_the_prompt_once_and_the_output_of_all_choices_in_a_chunk_without_choices():
    usage = usage_pb2.TokenUsage(prompt_tokens=10, output_tokens=3, cached_prompt_tokens=4, reasoning_tokens=1)
    responses = [execution_pb2.SystemResponse(token_usage=usage) for _ in range(2)]
    chunk = usage_chunk(HEADING, responses)
    assert chunk["choices"] == []
    assert chunk["usage"] == {
        "prompt_tokens": 10,
        "completion_tokens": 6,
        "total_tokens": 16,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }


def test_with_a_usage_at_the_end_the_other_chunks_have_none_as_null():
    choice = ChoiceChunks(replace(HEADING, has_usage=True), 0, ())
    chunks = [*choice.first(), *choice.of(content("a")), *choice.of(completed(content="a"))]
    assert [chunk["usage"] for chunk in chunks] == [None] * 3
    assert all("usage" not in chunk for chunk in chunks_of(content("a"), completed(content="a")))


@pytest.mark.parametrize(
    ("sent", "whole"),
    [("{'a': 1}", SCHEMA_ANSWER), ("```\n{}\n```", "{}"), ("Let me see. [1", "[1]"), ("abc", "ab"), ("a", "")],
)
def test_a_text_that_was_changed_after_it_was_sent_ends_the_stream(sent, whole):
    with pytest.raises(Aborted, match="repaired after it was sent"):
        chunks_of(content(sent), completed(content=whole))


@pytest.mark.parametrize(("sent", "whole", "rest"), [(" {", "{}", "}"), ("{} ", "{}", ""), ("\n", "{}", "{}")])
def test_white_space_around_a_text_is_no_change(sent, whole, rest):
    told = [delta["content"] for delta in deltas_of(content(sent), completed(content=whole))]
    assert told == [piece for piece in (sent, rest) if piece]


def test_a_reader_who_joins_after_calls_of_the_deployment_lacks_the_earlier_texts():
    last = completed(content="noon, I think", earlier_content="Let me look.")
    assert deltas_of(content("noon"), last) == [{"content": "noon"}, {"content": ", I think"}]


def test_an_answer_that_a_stop_text_ended_has_the_reason_stop():
    stopped = failed(error_pb2.ERROR_CODE_INFERENCE_OUTPUT_TRUNCATED, content="[1", details_json='{"stop":"]"}')
    *_, last = choices_of(content("[1"), stopped)
    assert last["finish_reason"] == "stop"
