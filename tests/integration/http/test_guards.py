"""What a guard blocks, as the HTTP APIs say it: an error before the answer, a finish reason of an answer."""

import pytest

from tests.support.guarded_app import KEY, SpokenInference, guard, guarded, words
from tests.support.http_app import data_in, text_in

TEXT = f"{'word ' * 100}the key is {KEY} {'word ' * 20}"
MESSAGES = {"model": "m", "max_tokens": 99, "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def filtering(served, tmp_path):
    return lambda *rules: (served, guarded(tmp_path, *rules, inference=SpokenInference(TEXT)))


async def test_a_blocked_input_is_an_error_that_names_the_guard(filtering):
    served, opened = filtering(words("input"))
    async with opened as services, served(services) as server:
        response = await server.chat("a heist")
    told = response.json()["error"]
    assert (response.status_code, told["type"], told["code"]) == (400, "invalid_request_error", "GUARD_BLOCKED")
    assert told["pagantic"]["details"] == {"guard": "topics", "stage": "input", "outcome": "blocked"}


async def test_a_blocked_answer_ends_with_content_filter(filtering):
    served, opened = filtering(guard("secrets", "output"))
    async with opened as services, served(services) as server:
        whole = await server.chat()
        async with server.chat_stream() as stream:
            text = (await stream.aread()).decode()
        answered = await server.http.post("/v1/responses", json={"model": "m", "input": "hi"})
        message = await server.http.post("/v1/messages", json=MESSAGES)
    [choice] = whole.json()["choices"]
    assert (whole.status_code, choice["finish_reason"]) == (200, "content_filter")
    assert whole.json()["pagantic"]["filtered"]["guard"] == "secrets"
    chunks = data_in(text)
    assert chunks[-1]["choices"][0]["finish_reason"] == "content_filter"
    assert TEXT.startswith(text_in(chunks))
    assert text_in(chunks)
    told = answered.json()
    assert (told["status"], told["incomplete_details"]) == ("incomplete", {"reason": "content_filter"})
    assert message.json()["stop_reason"] == "refusal"
    assert not any("AKIA" in shown for shown in (whole.text, text, answered.text, message.text))


async def test_a_redacted_answer_streams_and_its_warning_is_told(filtering):
    served, opened = filtering(guard("secrets", "output", action="redact"))
    async with opened as services, served(services) as server, server.chat_stream() as stream:
        text = (await stream.aread()).decode()
    chunks = data_in(text)
    assert text_in(chunks) == TEXT.replace(KEY, "[redacted: AWS_ACCESS_KEY]")
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert [one["code"] for one in chunks[-1]["pagantic"]["warnings"]] == ["guard_redacted"]
