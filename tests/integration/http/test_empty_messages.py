"""Messages without a text, in every API of conversations: they are taken, and the model does not see them."""

import pytest

from tests.support.scripted_services import ScriptedInference, answer, scripted_services

HI, NOW = {"role": "user", "content": "hi"}, {"role": "user", "content": "and now?"}
EMPTY = {"role": "assistant", "content": ""}


def chat(*messages):
    return "/v1/chat/completions", {"model": "", "messages": messages}


def response(*items):
    return "/v1/responses", {"model": "", "input": items}


def message(*messages, **fields):
    return "/v1/messages", {"model": "", "max_tokens": 9, "messages": messages, **fields}


def ollama(*messages):
    return "/api/chat", {"model": "", "messages": messages, "stream": False}


def parts(kind, text=""):
    return [{"type": kind, "text": text}]


REQUESTS = {
    "chat system": chat({"role": "system", "content": ""}, HI, NOW),
    "chat developer": chat({"role": "developer", "content": parts("text")}, HI, NOW),
    "chat user": chat({"role": "user", "content": ""}, HI, NOW),
    "chat user's parts": chat(HI, {"role": "user", "content": []}, NOW),
    "chat assistant": chat(HI, EMPTY, NOW),
    "chat null": chat(HI, {"role": "assistant", "content": None}, NOW),
    "chat no calls": chat(HI, {**EMPTY, "tool_calls": []}, NOW),
    "chat refusal": chat(HI, {"role": "assistant", "refusal": ""}, NOW),
    "chat reasoning alone": chat(HI, {**EMPTY, "reasoning_content": "hm"}, NOW),
    "response assistant": response(HI, {"role": "assistant", "content": parts("output_text")}, NOW),
    "response user": response(HI, {"role": "user", "content": ""}, NOW),
    "response developer": response({"role": "developer", "content": ""}, HI, NOW),
    "response reasoning alone": response(HI, {"type": "reasoning", "summary": parts("summary_text", "hm")}, NOW),
    "response empty reasoning": response(HI, {"type": "reasoning", "summary": []}, NOW),
    "message assistant": message(HI, EMPTY, NOW),
    "message no blocks": message(HI, {"role": "assistant", "content": []}, NOW),
    "message empty block": message(HI, {"role": "assistant", "content": parts("text")}, NOW),
    "message thinking": message(
        HI, {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": ""}]}, NOW
    ),
    "message user": message({"role": "user", "content": parts("text")}, HI, NOW),
    "message system": message(HI, NOW, system=parts("text")),
    "ollama assistant": ollama(HI, EMPTY, NOW),
    "ollama thinking": ollama(HI, {**EMPTY, "thinking": "hm"}, NOW),
    "ollama no content": ollama(HI, {"role": "assistant"}, NOW),
    "ollama system": ollama({"role": "system", "content": ""}, HI, NOW),
}


@pytest.mark.parametrize("name", REQUESTS)
async def test_an_empty_message_is_taken_and_the_model_does_not_see_it(served, name):
    inference = ScriptedInference(answer("hello"))
    path, body = REQUESTS[name]
    async with served(scripted_services(inference)) as server:
        told = await server.http.post(path, json=body)
    assert told.status_code == 200, told.text
    assert [message.content for message in inference.commands[0].messages] == ["hi", "and now?"]


@pytest.mark.parametrize("make", [chat, response, message, ollama])
async def test_an_empty_question_is_told_apart(served, make):
    path, body = make(HI, {"role": "user", "content": ""})
    async with served() as server:
        refused = await server.http.post(path, json=body)
    assert (refused.status_code, "messages[1] (user) is empty: send text" in refused.text) == (400, True)
