"""Chat completions over HTTP: whole and streamed answers, their failures, and what is left when clients have gone."""

import asyncio
import json

import httpx
import pytest

from pagantic_common.domain.errors import ErrorCode, Internal, InvalidRequest
from pagantic_common.domain.messages import ToolCall
from services.orchestrator.core.model.response import FinishReason
from tests.support.http_app import chat_body, data_in, text_in
from tests.support.scripted_services import BreakingInference, ScriptedInference, answer, scripted_services

CLOCK = {"type": "function", "function": {"name": "clock_of_client"}}
CALL = ToolCall("c1", "clock_of_client", '{"zone":"UTC"}')
SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
TOO_LONG = InvalidRequest("the prompt is too long", code=ErrorCode.INFERENCE_CONTEXT_EXCEEDED)


def scripted(*outputs):
    return scripted_services(ScriptedInference(*outputs))


async def test_a_whole_answer_has_its_text_usage_and_ids(served):
    async with served() as server:
        response = await server.chat(user="me")
    told = response.json()
    [choice] = told["choices"]
    assert (response.status_code, told["object"], told["model"]) == (200, "chat.completion", "scripted")
    expected = {"role": "assistant", "content": "hello", "refusal": None, "annotations": []}
    assert choice["message"] == expected
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "stop", None)
    assert [told["usage"][name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")] == [10, 3, 13]
    request_id = response.headers["x-request-id"]
    assert (told["id"], told["pagantic"]["request_id"]) == (f"chatcmpl-{request_id}", request_id)
    assert told["pagantic"]["ignored"] == ["user"]


async def test_a_request_that_names_no_model_is_told_how_to(served):
    async with served() as server:
        body = chat_body()
        del body["model"]
        refused = [await server.http.post(f"/v1/{path}", json=body) for path in ("chat/completions", "responses")]
    assert [one.status_code for one in refused] == [400, 400]
    assert all("GET /v1/models" in one.json()["error"]["message"] for one in refused)


async def test_a_stream_has_the_same_answer_in_events(served):
    async with served(scripted(answer("hello there"))) as server, server.chat_stream() as response:
        text = (await response.aread()).decode()
    chunks = data_in(text)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert (chunks[0]["choices"][0]["delta"]["role"], text_in(chunks)) == ("assistant", "hello there")
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert {chunk["id"] for chunk in chunks} == {f"chatcmpl-{response.headers['x-request-id']}"}
    assert not any("usage" in chunk for chunk in chunks)


async def test_a_stream_ends_with_the_usage_when_it_is_asked_for(served):
    async with served() as server, server.chat_stream(stream_options={"include_usage": True}) as response:
        *_, last = data_in((await response.aread()).decode())
    assert (last["choices"], last["usage"]["total_tokens"]) == ([], 13)


async def test_several_choices_are_executions_with_seeds_of_their_own(served):
    services = scripted(answer("one"), answer("two"))
    async with served(services) as server:
        told = (await server.chat(n=2, seed=5)).json()
    assert [choice["index"] for choice in told["choices"]] == [0, 1]
    assert {choice["message"]["content"] for choice in told["choices"]} == {"one", "two"}
    assert sorted(hints.seed for hints in services.inference.hinted) == [5, 6]
    assert told["pagantic"]["request_ids"] == [told["id"].removeprefix("chatcmpl-") + end for end in ("", ".2")]
    assert told["usage"]["completion_tokens"] == 6


async def test_several_choices_are_told_apart_in_a_stream(served):
    async with served(scripted(answer("one"), answer("two"))) as server, server.chat_stream(n=2) as response:
        chunks = data_in((await response.aread()).decode())
    assert {text_in(chunks, 0), text_in(chunks, 1)} == {"one", "two"}
    ends = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["finish_reason"]]
    assert {(end["index"], end["finish_reason"]) for end in ends} == {(0, "stop"), (1, "stop")}


async def test_one_choice_that_fails_stops_the_others(served):
    services = scripted(TOO_LONG, None)
    async with served(services) as server:
        response = await server.chat(n=2)
        if services.inference.waiting.is_set():  # the other may not have come so far
            await asyncio.wait_for(services.inference.stopped.wait(), 60)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "INFERENCE_CONTEXT_EXCEEDED")


async def test_a_call_of_a_tool_and_its_result_are_a_conversation(served):
    services = scripted(answer("", [CALL]), answer("It is noon."))
    async with served(services) as server:
        [choice] = (await server.chat(tools=[CLOCK])).json()["choices"]
        message = choice["message"]
        result = {"role": "tool", "tool_call_id": "c1", "content": "noon"}
        messages = [{"role": "user", "content": "hi"}, message, result]
        last = (await server.chat(messages=messages, tools=[CLOCK])).json()["choices"][0]["message"]
    assert (choice["finish_reason"], message["content"]) == ("tool_calls", None)
    [call] = message["tool_calls"]
    assert call == {
        "id": "c1",
        "type": "function",
        "function": {"name": "clock_of_client", "arguments": '{"zone":"UTC"}'},
    }
    assert last["content"] == "It is noon."
    assert [one.content for one in services.inference.commands[1].messages][-1] == "noon"


async def test_a_call_of_a_tool_is_streamed(served):
    async with served(scripted(answer("", [CALL]))) as server, server.chat_stream(tools=[CLOCK]) as response:
        chunks = data_in((await response.aread()).decode())
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    [call] = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert (call["id"], call["function"]["name"]) == ("c1", "clock_of_client")
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_an_answer_with_a_schema_is_json_with_its_guarantee(served):
    async with served(scripted(answer('{"a":1}'))) as server:
        told = (await server.chat(response_format=SCHEMA)).json()
    assert json.loads(told["choices"][0]["message"]["content"]) == {"a": 1}
    assert told["pagantic"]["guarantee"] == "ENFORCED"


async def test_an_answer_that_a_limit_cut_is_told_as_one(served):
    async with served(scripted(answer("hel", reason=FinishReason.LENGTH))) as server:
        [choice] = (await server.chat(max_tokens=1)).json()["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("hel", "length")


async def test_a_request_id_is_the_key_of_the_answer(served):
    services = scripted(answer("one"), answer("two"))
    extension = {"request_id": "mine"}
    async with served(services) as server:
        first = await server.chat(pagantic=extension)
        async with server.chat_stream(pagantic=extension) as response:
            again = data_in((await response.aread()).decode())
        other = await server.chat("something else", pagantic=extension)
    assert first.headers["x-request-id"] == "mine"
    assert (first.json()["choices"][0]["message"]["content"], text_in(again)) == ("one", "one")
    assert (other.status_code, len(services.inference.commands)) == (409, 1)


async def test_names_of_models_stand_for_aliases(served):
    services = scripted()
    async with served(services, models={"gpt": "small", "*": ""}) as server:
        for name in ("gpt", "other"):
            assert (await server.chat(model=name)).json()["model"] == name
    assert [hints.model for hints in services.inference.hinted] == ["small", ""]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"temperature": 3}, "temperature"),
        ({"n": 0}, "n: "),
        ({"messages": []}, "messages: "),
        ({"pagantic": {"request_id": "a\r\nset-cookie: x"}}, "pagantic.request_id"),
    ],
)
@pytest.mark.parametrize("streams", [False, True])
async def test_a_wrong_request_has_its_status_also_where_a_stream_is_asked_for(served, fields, words, streams):
    async with served() as server:
        refused = await server.chat(stream=streams, **fields)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (400, "CONFIG_INVALID")
    assert refused.headers["x-should-retry"] == "false"
    assert words in error["message"]
    assert refused.headers["x-request-id"] == error["pagantic"]["request_id"]


async def test_a_failure_of_the_model_is_a_status(served):
    async with served(scripted(Internal("it broke", code=ErrorCode.INFERENCE_ENGINE_ERROR))) as server:
        failed = await server.chat()
    assert (failed.status_code, failed.json()["error"]["code"]) == (500, "INFERENCE_ENGINE_ERROR")


async def test_a_failure_after_the_stream_began_is_an_event(served):
    async with served(scripted_services(BreakingInference())) as server, server.chat_stream() as response:
        *_, last = data_in((await response.aread()).decode())
    assert (response.status_code, last["error"]["code"]) == (200, "INFERENCE_ENGINE_ERROR")


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"{", 400, "not JSON"),
        (b"\xff", 400, "not UTF-8"),
        (b"[]", 400, "no JSON object"),
        (b"", 400, "not JSON"),
        (b'{"messages":[{"role":"user","content":"\\ud800"}]}', 400, "surrogate"),
        (b'{"temperature":1e999}', 400, "too large"),
        (b'"' + b"x" * 2048 + b'"', 413, "more than 1024 bytes"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/executions"])
async def test_a_body_that_is_no_request_is_refused(served, path, body, status, words):
    async with served(max_body_bytes=1024) as server:
        refused = await server.http.post(path, content=body)
        await none_runs(server)
    assert (refused.status_code, words in refused.json()["error"]["message"]) == (status, True)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("PUT", "/v1/chat/completions", 405),
        ("POST", "/v1/models", 405),
        ("PUT", "/v1/executions/x", 405),
        ("GET", "/v1/embeddings", 405),
        ("GET", "/console", 404),
        ("GET", "/v1/executions/x", 404),
        ("DELETE", "/v1/executions/x", 404),
    ],
)
async def test_other_paths_methods_and_ids_are_refused(served, method, path, status):
    async with served() as server:
        refused = await server.http.request(method, path)
    assert (refused.status_code, refused.json()["error"]["message"] != "") == (status, True)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 421),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://localhost:3000"}, 403),
        ({"host": "localhost:3000", "origin": "http://localhost:3000"}, 200),
        ({"host": "localhost:1"}, 200),
    ],
)
async def test_pages_of_other_hosts_do_not_get_in(served, headers, status):
    async with served() as server:
        assert (await server.chat(headers=headers)).status_code == status


async def test_with_keys_a_request_without_one_is_refused(served):
    async with served(auth="keys") as server:
        refused = await server.chat()
        allowed = await server.chat(headers={"authorization": "Bearer key"})
    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
    assert refused.json()["error"]["type"] == "authentication_error"
    assert allowed.status_code == 200


async def test_one_more_request_than_may_run_is_refused(served):
    services = scripted(None)
    async with served(services, max_streams=1) as server, server.chat_stream():
        assert (await server.chat()).status_code == 503
        assert (await server.http.get("/healthz")).status_code == 200


@pytest.mark.parametrize("count", [1, 2])
async def test_a_client_that_leaves_a_stream_stops_the_execution(served, count):
    services = scripted(None)
    async with served(services) as server:
        async with server.chat_stream(n=count) as response:
            assert "assistant" in await anext(response.aiter_lines())
            await asyncio.wait_for(services.inference.waiting.wait(), 60)
        await asyncio.wait_for(services.inference.stopped.wait(), 60)
        await none_runs(server)


async def test_a_client_that_leaves_before_a_whole_answer_stops_the_execution(served):
    services = scripted(None)
    async with served(services) as server:
        async with httpx.AsyncClient(base_url=server.http.base_url) as leaving:
            asking = asyncio.create_task(leaving.post("/v1/chat/completions", json=chat_body()))
            await asyncio.wait_for(services.inference.waiting.wait(), 60)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        await asyncio.wait_for(services.inference.stopped.wait(), 60)
        await none_runs(server)


async def none_runs(server):
    """Wait until the gateway has no request."""
    async with asyncio.timeout(60):
        while server.app.entry.request_count:  # noqa: ASYNC110 - the count has no event
            await asyncio.sleep(0.01)
