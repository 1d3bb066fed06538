"""The stream of an answer as lines: the same however the text is cut, and the same as the whole answer."""

import pytest
from hypothesis import given

from gateway.http.ollama.answers import AnswerLines, LineHead, whole_of
from gateway.http.ollama.models import shown
from pagantic.common.v1 import error_pb2, usage_pb2
from pagantic_common.domain.errors import Aborted, PaganticError
from tests.unit.http.test_chunks import call, completed, content, discarded, failed
from tests.unit.http.test_response_stream import CUTS, ENDINGS, deltas_of

CHAT = LineHead("m", "2026-01-01T00:00:00Z", is_chat=True, ignored=("keep_alive",))
GENERATE = LineHead("m", "2026-01-01T00:00:00Z", is_chat=False)
ANSWERED = sorted(set(ENDINGS) - {"failed"})


def lines_of(head, *events):
    stream = AnswerLines(head)
    assert not list(stream.first())
    return [line for event in events for line in stream.of(event)]


def joined(lines):
    """Return the whole answer that a client makes of the lines of a chat."""
    *parts, last = lines
    assert [line["done"] for line in lines] == [False] * len(parts) + [True]
    message = {"role": "assistant", "content": ""}
    for line in parts:
        part = line["message"]
        message["content"] += part["content"]
        for name in ("thinking", "tool_calls"):
            if name in part:
                message[name] = message[name] + part[name] if name in message else part[name]
    assert last["message"] == {"role": "assistant", "content": ""}
    return last | {"message": message}


@pytest.mark.parametrize("name", ANSWERED)
@given(cuts=CUTS)
def test_a_stream_is_the_whole_answer_however_its_text_is_cut(name, cuts):
    lines = lines_of(CHAT, *deltas_of(ENDINGS[name], cuts))
    assert joined(lines) == whole_of(CHAT, ENDINGS[name].completed.response)


@given(cuts=CUTS)
def test_a_generated_text_is_in_the_field_response(cuts):
    *parts, last = lines_of(GENERATE, *deltas_of(ENDINGS["thought"], cuts))
    whole = whole_of(GENERATE, ENDINGS["thought"].completed.response)
    assert (whole["response"], whole["thinking"]) == ("hello", "hm, well")
    for name in ("response", "thinking"):
        assert "".join(line.get(name, "") for line in parts) == whole[name]
    assert (last["response"], last["done"], "message" in last) == ("", True, False)


def test_calls_are_sent_whole_before_the_last_line():
    *_, calls, last = lines_of(CHAT, *deltas_of(ENDINGS["calls"], [3]))
    assert calls["message"]["tool_calls"] == [
        {"id": f"c{n}", "function": {"index": n, "name": f"tool{n}", "arguments": {"a": n}}} for n in range(2)
    ]
    assert (last["done"], last["done_reason"]) == (True, "stop")


def test_a_call_that_a_limit_cut_is_not_sent():
    cut = failed(error_pb2.ERROR_CODE_INFERENCE_OUTPUT_TRUNCATED)
    [last] = lines_of(CHAT, call(0, '{"a": ', id="c0", name="tool0"), cut)
    assert last["done_reason"] == "length"


def test_the_end_has_the_usage_and_the_time_in_nanoseconds():
    usage = usage_pb2.TokenUsage(prompt_tokens=10, output_tokens=3, decode_seconds=0.25)
    [line, last] = lines_of(CHAT, completed(content="a", token_usage=usage))
    assert line["message"] == {"role": "assistant", "content": "a"}
    assert (last["prompt_eval_count"], last["eval_count"], last["eval_duration"]) == (10, 3, 250_000_000)
    assert last["pagantic"]["ignored"] == ["keep_alive"]
    assert "eval_duration" not in whole_of(CHAT, ENDINGS["text"].completed.response)


def test_the_failure_of_a_response_is_raised_and_told_as_a_line():
    stream = AnswerLines(CHAT)
    with pytest.raises(PaganticError, match="it is broken") as raised:
        list(stream.of(failed(error_pb2.ERROR_CODE_INFERENCE_ENGINE_ERROR)))
    [line] = stream.error(raised.value, "r")
    assert (line["error"], line["pagantic"]["code"]) == ("it is broken", "INFERENCE_ENGINE_ERROR")


def test_an_attempt_that_is_discarded_after_its_text_was_sent_ends_the_stream():
    with pytest.raises(Aborted, match="attempt 1 was discarded"):
        lines_of(CHAT, content("hel"), discarded())
    assert not lines_of(CHAT, discarded())


def test_a_model_is_shown_with_what_the_list_knows():
    extension = {"context_window": 2048, "capabilities": ["chat", "tools", "gbnf"]}
    told = shown({"id": "small", "pagantic": extension})
    assert (told["capabilities"], told["model_info"]["pagantic.context_length"]) == (["completion", "tools"], 2048)
    assert shown({"id": "name"})["capabilities"] == ["completion"]
