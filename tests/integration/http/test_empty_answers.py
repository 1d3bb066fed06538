"""An answer of the model without a text is an answer, whole and streamed, in every API that answers conversations."""

import json

import pytest

from tests.support.scripted_services import ScriptedInference, answer, scripted_services

HI = [{"role": "user", "content": "hi"}]
REQUESTS = {
    "chat": ("/v1/chat/completions", {"model": "", "messages": HI}),
    "response": ("/v1/responses", {"model": "", "input": "hi"}),
    "message": ("/v1/messages", {"model": "", "max_tokens": 9, "messages": HI}),
    "ollama chat": ("/api/chat", {"model": "", "messages": HI}),
    "ollama text": ("/api/generate", {"model": "", "prompt": "hi"}),
    "completion": ("/v1/completions", {"model": "", "prompt": "hi"}),
}


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_empty_answer_is_a_success(served, name, stream):
    path, body = REQUESTS[name]
    async with served(scripted_services(inference=ScriptedInference(answer("")))) as server:
        told = await server.http.post(path, json={**body, "stream": stream})
    assert told.status_code == 200
    assert "error" not in [line.partition(":")[2].strip() for line in told.text.splitlines() if line[:6] == "event:"]
    if not stream:
        assert "error" not in told.json() or told.json()["error"] is None
    if name != "completion":  # a raw text may end where it is
        assert "empty_answer" in told.text


async def test_the_messages_after_an_empty_answer_are_answered(served):
    inference = ScriptedInference(answer(""), answer("hello"))
    async with served(scripted_services(inference=inference)) as server:
        first = (await server.http.post("/v1/responses", json={"model": "", "input": "hi"})).json()
        more = {"model": "", "input": "and now?", "previous_response_id": first["id"]}
        second = await server.http.post("/v1/responses", json=more)
    assert second.status_code == 200, second.text
    assert json.dumps("hello") in second.text
    assert [message.content for message in inference.commands[1].messages] == ["hi", "and now?"]
