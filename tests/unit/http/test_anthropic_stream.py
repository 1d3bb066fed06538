"""The stream of a message: the same events however the text is cut, and the same message as the whole answer."""

import json

import pytest
from hypothesis import given

from gateway.http.anthropic.answers import MessageEvents, MessageHead, message_of
from pagantic.common.v1 import error_pb2, usage_pb2
from pagantic_common.domain.errors import Aborted, PaganticError
from tests.unit.http.test_chunks import call, completed, content, discarded, failed, reasoning
from tests.unit.http.test_response_stream import CUTS, ENDINGS, deltas_of

HEAD = MessageHead("msg_1", "m", ("user",))
FAILED = failed(error_pb2.ERROR_CODE_INFERENCE_ENGINE_ERROR)
ANSWERED = sorted(set(ENDINGS) - {"failed"})
_TEXTS = {"thinking_delta": "thinking", "text_delta": "text", "input_json_delta": "partial_json"}


def events_of(*events):
    stream = MessageEvents(HEAD)
    told = list(stream.first())
    return told + [one for event in events for one in stream.of(event)]


def kinds(events):
    return [event["type"] for event in events]


def message_in(events):
    """Return the message that a client makes of a stream."""
    first, *middle, delta, stop = events
    assert (first["type"], delta["type"], stop) == ("message_start", "message_delta", {"type": "message_stop"})
    blocks, texts = [], []
    for event in middle:
        match event["type"]:
            case "content_block_start":
                assert event["index"] == len(blocks)
                blocks.append(dict(event["content_block"]))
                texts.append("")
            case "content_block_delta":
                assert event["index"] == len(blocks) - 1
                texts[-1] += event["delta"][_TEXTS[event["delta"]["type"]]]
            case kind:
                assert (kind, event["index"]) == ("content_block_stop", len(blocks) - 1)
    for block, text in zip(blocks, texts, strict=True):
        if block["type"] == "tool_use":
            block["input"] = json.loads(text)
        else:
            block[block["type"]] = text
    return {
        **first["message"],
        "content": blocks,
        **delta["delta"],
        "usage": delta["usage"],
        "pagantic": delta["pagantic"],
    }


def test_the_events_of_all_kinds_of_blocks_are_those_that_clients_know():
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    events = events_of(ENDINGS["all"])
    assert kinds(events) == ["message_start", *block * 4, "message_delta", "message_stop"]
    starts = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    assert starts == [
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "text", "text": ""},
        {"type": "tool_use", "id": "c0", "name": "tool0", "input": {}, "caller": {"type": "direct"}},
        {"type": "tool_use", "id": "c1", "name": "tool1", "input": {}, "caller": {"type": "direct"}},
    ]


@pytest.mark.parametrize("name", ANSWERED)
@given(cuts=CUTS)
def test_a_stream_is_the_whole_message_however_its_text_is_cut(name, cuts):
    events = events_of(*deltas_of(ENDINGS[name], cuts))
    assert message_in(events) == message_of(HEAD, ENDINGS[name].completed.response)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("text", "end_turn"),
        ("nothing", "end_turn"),
        ("calls", "tool_use"),
        ("cut", "max_tokens"),
    ],
)
def test_a_message_says_why_it_ended(name, reason):
    message = message_of(HEAD, ENDINGS[name].completed.response)
    assert (message["stop_reason"], message["stop_sequence"]) == (reason, None)
    assert message["pagantic"]["ignored"] == ["user"]


def test_tokens_from_the_cache_are_not_input_tokens():
    usage = usage_pb2.TokenUsage(prompt_tokens=10, cached_prompt_tokens=4, output_tokens=3)
    message = message_of(HEAD, completed(content="a", token_usage=usage).completed.response)
    names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
    assert [message["usage"][name] for name in names] == [6, 0, 4, 3]


def test_a_call_that_a_limit_cut_is_a_block_that_ends_early():
    cut = failed(error_pb2.ERROR_CODE_INFERENCE_OUTPUT_TRUNCATED)
    *_, delta, _ = events = events_of(call(0, '{"a": ', id="c0", name="tool0"), cut)
    assert [event["delta"]["partial_json"] for event in events if event["type"] == "content_block_delta"] == ['{"a": ']
    assert delta["delta"]["stop_reason"] == "max_tokens"


@pytest.mark.parametrize("sent", [(), (content("hel"),), (reasoning("hm"),)])
def test_the_failure_of_a_response_is_raised_and_told_as_an_event(sent):
    stream = MessageEvents(HEAD)
    for event in sent:
        assert list(stream.of(event))
    with pytest.raises(PaganticError, match="it is broken") as raised:
        list(stream.of(FAILED))
    [event] = stream.error(raised.value, "r")
    assert (event["type"], event["request_id"], event["error"]["type"]) == ("error", "r", "api_error")
    assert event["error"]["pagantic"]["code"] == "INFERENCE_ENGINE_ERROR"


def test_an_attempt_that_is_discarded_after_its_text_was_sent_ends_the_stream():
    with pytest.raises(Aborted, match="attempt 1 was discarded"):
        events_of(content("hel"), discarded())
    assert kinds(events_of(discarded())) == ["message_start"]
