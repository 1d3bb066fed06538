"""Anthropic's own client before the gateway: whole and streamed messages, models, keys and failures."""

from contextlib import asynccontextmanager

import anthropic
import pytest

from gateway.http.streams import running
from pagantic_common.domain.errors import ErrorCode, InvalidRequest, Overloaded
from pagantic_common.domain.messages import ToolCall
from services.orchestrator.core.model.response import FinishReason
from tests.support.scripted_services import BreakingInference, ScriptedInference, answer, scripted_services

CLOCK = {"name": "clock_of_client", "description": "Tells the time.", "input_schema": {"type": "object"}}
CALL = ToolCall("c1", "clock_of_client", '{"zone":"UTC"}')
TOO_LONG = InvalidRequest("the prompt is too long", code=ErrorCode.INFERENCE_CONTEXT_EXCEEDED)
HI = {"role": "user", "content": "hi"}


def scripted(*outputs):
    return scripted_services(ScriptedInference(*outputs))


@asynccontextmanager
async def opened(server, key="none", bearer=None):
    async with anthropic.AsyncAnthropic(
        base_url=str(server.http.base_url), api_key=key, auth_token=bearer, max_retries=0
    ) as client:
        yield client


def asked(client, *messages, **fields):
    return client.messages.create(model="", max_tokens=9, messages=list(messages) or [HI], **fields)


async def test_a_whole_message_has_its_text_usage_and_ids(served):
    async with served() as server, opened(server) as client:
        message = await asked(client, metadata={"user_id": "u"}, service_tier="auto")
    [block] = message.content
    assert (block.type, block.text, message.stop_reason, message.role) == ("text", "hello", "end_turn", "assistant")
    assert (message.usage.input_tokens, message.usage.output_tokens) == (10, 3)
    assert message.id == f"msg_{message._request_id}"
    assert message.pagantic["request_id"] == message._request_id
    assert message.pagantic["ignored"] == ["metadata", "service_tier"]


async def test_a_stream_is_the_same_message(served):
    async with (
        served(scripted(answer("hello there"))) as server,
        opened(server) as client,
        client.messages.stream(model="", max_tokens=9, messages=[HI]) as stream,
    ):
        kinds = [event.type async for event in stream]
        message = await stream.get_final_message()
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
    assert [block.text for block in message.content] == ["hello there"]
    assert (message.stop_reason, message.usage.input_tokens, message.usage.output_tokens) == ("end_turn", 10, 3)


async def test_a_call_of_a_tool_and_its_result_are_a_conversation(served):
    services = scripted(answer("", [CALL]), answer("It is noon."))
    async with served(services) as server, opened(server) as client:
        message = await asked(client, tools=[CLOCK])
        [block] = message.content
        result = {"type": "tool_result", "tool_use_id": block.id, "content": "noon"}
        talk = [HI, {"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
        last = await asked(client, *talk, tools=[CLOCK])
    assert (block.type, block.name, block.input, message.stop_reason) == (
        "tool_use",
        "clock_of_client",
        {"zone": "UTC"},
        "tool_use",
    )
    assert last.content[0].text == "It is noon."
    assert [one.content for one in services.inference.commands[1].messages][-1] == "noon"


async def test_a_call_of_a_tool_is_streamed(served):
    async with (
        served(scripted(answer("", [CALL]))) as server,
        opened(server) as client,
        client.messages.stream(model="", max_tokens=9, messages=[HI], tools=[CLOCK]) as stream,
    ):
        message = await stream.get_final_message()
    assert [(block.id, block.input) for block in message.content] == [("c1", {"zone": "UTC"})]
    assert message.stop_reason == "tool_use"


async def test_an_answer_that_a_limit_cut_says_so(served):
    async with served(scripted(answer("hel", reason=FinishReason.LENGTH))) as server, opened(server) as client:
        message = await asked(client)
    assert (message.content[0].text, message.stop_reason) == ("hel", "max_tokens")


async def test_a_quiet_stream_has_pings(served, monkeypatch):
    monkeypatch.setattr("gateway.http.streams.sending.QUIET_S", running.QUIET_S / 1500)
    body = {"model": "", "max_tokens": 9, "messages": [HI], "stream": True}
    async with served(scripted(None)) as server, server.http.stream("POST", "/v1/messages", json=body) as response:
        async for line in response.aiter_lines():
            if line == "event: ping":
                break
    assert (response.status_code, line) == (200, "event: ping")


async def test_a_key_comes_in_the_clients_own_header_or_as_a_bearer(served):
    async with served(auth="keys") as server:
        async with opened(server, "key") as client:
            assert (await asked(client)).content
        refused = await server.http.post("/v1/messages", json={})
        async with opened(server, None, "key") as other:
            assert (await asked(other)).content
    assert (refused.status_code, refused.json()["error"]["type"]) == (401, "authentication_error")
    assert "x-api-key" in refused.json()["error"]["message"]


@pytest.mark.parametrize("fields", [{"temperature": 9}, {"top_k": -1}, {"top_k": -1, "stream": True}])
async def test_a_wrong_request_is_the_clients_own_exception(served, fields):
    async with served() as server, opened(server) as client:
        with pytest.raises(anthropic.BadRequestError) as raised:
            await asked(client, extra_body=fields)
    body = raised.value.body
    assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
    assert body["error"]["pagantic"]["code"] == "CONFIG_INVALID"
    assert body["request_id"] == raised.value.response.headers["request-id"]


@pytest.mark.parametrize(
    ("failure", "status", "kind"),
    [
        (TOO_LONG, 400, "invalid_request_error"),
        (Overloaded("the queue is full", code=ErrorCode.INFERENCE_OVERLOADED), 503, "overloaded_error"),
    ],
)
async def test_a_failure_of_the_model_is_a_status_also_where_a_stream_is_asked_for(served, failure, status, kind):
    async with served(scripted(failure, failure)) as server, opened(server) as client:
        with pytest.raises(anthropic.APIStatusError) as raised:
            await asked(client)
        assert (raised.value.status_code, raised.value.body["error"]["type"]) == (status, kind)
        with pytest.raises(anthropic.APIStatusError) as refused:
            await asked(client, stream=True)
        assert (refused.value.status_code, refused.value.body["error"]["type"]) == (status, kind)


async def test_a_failure_after_a_text_is_an_event(served):
    async with served(scripted_services(BreakingInference())) as server, opened(server) as client:
        with pytest.raises(anthropic.APIStatusError) as broken:
            async for _ in await asked(client, stream=True):
                pass
    assert (broken.value.response.status_code, broken.value.body["error"]["type"]) == (200, "api_error")


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", "/v1/messages", 405, "invalid_request_error"),
        ("POST", "/v1/messages/batches", 404, "not_found_error"),
        ("GET", "/v1/models/none-such", 404, "not_found_error"),
    ],
)
async def test_other_paths_and_methods_are_refused_in_the_same_form(served, method, path, status, kind):
    async with served() as server:
        refused = await server.http.request(method, path, headers={"anthropic-version": "2023-06-01"})
    told = refused.json()
    assert (refused.status_code, told["type"], told["error"]["type"]) == (status, "error", kind)


async def test_a_body_that_is_too_large_has_a_type_of_its_own(served):
    async with served(max_body_bytes=1024) as server:
        refused = await server.http.post("/v1/messages", content=b" " * 2048)
    assert (refused.status_code, refused.json()["error"]["type"]) == (413, "request_too_large")


async def test_models_are_listed_for_the_clients_of_both_apis(served):
    async with served(models={"claude": ""}) as server, opened(server) as client:
        listed = [model async for model in client.models.list()]
        one = await client.models.retrieve("claude")
        others = (await server.http.get("/v1/models")).json()
    assert [model.id for model in listed] == [model["id"] for model in others["data"]]
    assert (one.type, one.id, one.display_name, others["object"]) == ("model", "claude", "claude", "list")


async def test_tokens_are_counted_of_what_the_model_would_read(served):
    services = scripted()
    blocks = [{"type": "text", "text": "one"}, {"type": "text", "text": " two"}]
    talk = [{"role": "user", "content": blocks}, {"role": "assistant", "content": ""}, HI]
    async with served(services) as server, opened(server) as client:
        counted = await client.messages.count_tokens(model="", messages=talk, system="be brief", tools=[CLOCK])
        plain = await client.messages.count_tokens(model="", messages=[HI])
        body = {"model": "", "messages": [HI], "max_tokens": 5, "stream": True, "service_tier": "auto"}
        whole = (await server.http.post("/v1/messages/count_tokens", json=body)).json()
    assert [(message.role, message.content) for message in services.inference.counted[0][0]] == [
        ("system", "be brief"),
        ("user", "one two"),
        ("assistant", ""),
        ("user", "hi"),
    ]
    assert (counted.input_tokens, plain.input_tokens) == (9, 2)
    assert whole == {"input_tokens": 2, "pagantic": {"ignored": ["max_tokens", "service_tier", "stream"]}}
    assert not services.inference.commands


async def test_a_wrong_request_to_count_tokens_is_the_clients_own_exception(served):
    async with served() as server, opened(server) as client:
        with pytest.raises(anthropic.BadRequestError, match="messages"):
            await client.messages.count_tokens(model="", messages=[])
