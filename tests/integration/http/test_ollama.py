"""Ollama's own client before the gateway: chats, generated texts, models and failures."""

import asyncio
import json
import os
from contextlib import asynccontextmanager

import ollama
import pytest

from gateway.http.streams import running
from pagantic.orchestrator.v1 import key_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.domain.calls.api_keys import StoredKey, hash_of, make_key
from pagantic_common.domain.calls.principal import DEFAULT_TENANT, Scope
from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.domain.messages import ModelInfo, ToolCall
from services.orchestrator.core.model.response import FinishReason
from services.orchestrator.ports.serving import ReplicaReport, ServedModel
from tests.support.http_app import serving_http
from tests.support.mcp_app import deployment
from tests.support.scripted_services import BreakingInference, ScriptedInference, answer, scripted_services
from tests.support.scripted_serving import LOAD, ScriptedServing

CLOCK = {"type": "function", "function": {"name": "clock_of_client", "parameters": {"type": "object"}}}
CALL = ToolCall("c1", "clock_of_client", '{"zone":"UTC"}')
TOO_LONG = InvalidRequest("the prompt is too long", code=ErrorCode.INFERENCE_CONTEXT_EXCEEDED)
SCHEMA = {"type": "object"}
ADMIN = make_key(os.urandom)
STORED = StoredKey(DEFAULT_TENANT, ADMIN.key_id, "admin", frozenset(Scope), hash_of(ADMIN.secret), 0.0)
HI = {"role": "user", "content": "hi"}


def scripted(*outputs):
    return scripted_services(ScriptedInference(*outputs))


def opened(server):
    return ollama.AsyncClient(host=str(server.http.base_url))


async def test_a_whole_chat_has_its_text_and_counts(served):
    async with served(models={"llama": ""}) as server, opened(server) as client:
        told = await client.chat("llama", [HI], keep_alive="5m")
    assert (told.message.role, told.message.content, told.model) == ("assistant", "hello", "llama")
    assert (told.done, told.done_reason, told.prompt_eval_count, told.eval_count) == (True, "stop", 10, 3)


async def test_a_stream_is_the_same_chat_in_lines(served):
    async with served(scripted(answer("hello there")), models={"llama": ""}) as server, opened(server) as client:
        parts = [part async for part in await client.chat("llama", [HI], stream=True)]
    assert "".join(part.message.content for part in parts) == "hello there"
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert (parts[-1].done_reason, parts[-1].eval_count) == ("stop", 3)


async def test_lines_are_what_clients_get_that_say_nothing(served):
    async with served() as server:
        told = await server.http.post("/api/generate", json={"model": "", "prompt": "hi", "keep_alive": 1})
    lines = [json.loads(line) for line in told.text.splitlines()]
    assert told.headers["content-type"] == "application/x-ndjson"
    assert "".join(line["response"] for line in lines) == "hello"
    extension = lines[-1]["pagantic"]
    assert (extension["request_id"], extension["ignored"]) == (told.headers["x-request-id"], ["keep_alive"])


async def test_a_prompt_with_a_system_is_a_chat(served):
    services = scripted(answer("hello", reason=FinishReason.LENGTH))
    async with served(services, models={"llama": ""}) as server, opened(server) as client:
        told = await client.generate("llama", "hi", system="be brief", options={"num_predict": 5})
    assert (told.response, told.done_reason) == ("hello", "length")
    assert [message.content for message in services.inference.commands[0].messages] == ["be brief", "hi"]
    assert services.inference.hinted[0].max_tokens == 5


@pytest.mark.parametrize("streams", [False, True])
async def test_a_call_of_a_tool_and_its_result_are_a_conversation(served, streams):
    services = scripted(answer("", [CALL]), answer("It is noon."))
    async with served(services, models={"llama": ""}) as server, opened(server) as client:
        told = await client.chat("llama", [HI], tools=[CLOCK], stream=streams)
        parts = [part async for part in told] if streams else [told]
        [message] = [part.message for part in parts if part.message.tool_calls]
        result = {"role": "tool", "tool_name": "clock_of_client", "content": "noon"}
        last = await client.chat("llama", [HI, message, result], tools=[CLOCK])
    [call] = message.tool_calls
    assert (call.function.name, call.function.arguments) == ("clock_of_client", {"zone": "UTC"})
    assert last.message.content == "It is noon."
    assert [one.content for one in services.inference.commands[1].messages][-1] == "noon"


@pytest.mark.parametrize("asked", ["json", SCHEMA])
async def test_a_format_is_enforced(served, asked):
    async with served(scripted(answer('{"a":1}'))) as server:
        body = {"model": "", "messages": [HI], "format": asked, "stream": False}
        told = (await server.http.post("/api/chat", json=body)).json()
    assert json.loads(told["message"]["content"]) == {"a": 1}
    assert told["pagantic"]["guarantee"] == "ENFORCED"


async def test_a_quiet_stream_has_empty_lines_of_the_answer(served, monkeypatch):
    monkeypatch.setattr("gateway.http.streams.sending.QUIET_S", running.QUIET_S / 1500)
    async with served(scripted(None), models={"llama": ""}) as server, opened(server) as client:
        part = await asyncio.wait_for(anext(await client.chat("llama", [HI], stream=True)), 60)
    assert (part.message.content, part.done) == ("", False)


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(
    ("fields", "words"),
    [({"options": {"temperature": 9}}, "temperature"), ({"format": "yaml"}, "format: ")],
)
async def test_a_wrong_request_is_the_clients_own_exception(served, fields, words, streams):
    async with served() as server:
        refused = await server.http.post("/api/chat", json={"model": "", "messages": [HI], "stream": streams, **fields})
    told = refused.json()
    assert (refused.status_code, words in told["error"]) == (400, True)
    assert told["pagantic"]["code"] == "CONFIG_INVALID"


async def test_a_failure_of_the_model_is_a_status_also_where_a_stream_is_asked_for(served):
    async with served(scripted(TOO_LONG, TOO_LONG), models={"llama": ""}) as server, opened(server) as client:
        with pytest.raises(ollama.ResponseError, match="the prompt is too long") as raised:
            await client.chat("llama", [HI])
        with pytest.raises(ollama.ResponseError, match="the prompt is too long") as refused:
            await anext(await client.chat("llama", [HI], stream=True))
    assert (raised.value.status_code, refused.value.status_code) == (400, 400)


async def test_a_failure_after_a_text_is_a_line(served):
    services = scripted_services(BreakingInference())
    async with served(services, models={"llama": ""}) as server, opened(server) as client:
        lines = await client.chat("llama", [HI], stream=True)
        assert (await anext(lines)).message.content == "hello"
        with pytest.raises(ollama.ResponseError, match="it broke"):
            await anext(lines)


async def test_models_are_listed_and_shown(served):
    async with served(models={"llama": ""}) as server, opened(server) as client:
        listed = await client.list()
        told = await client.show("llama")
        version = (await server.http.get("/api/version")).json()
        with pytest.raises(ollama.ResponseError, match="there is no model 'none-such'") as raised:
            await client.show("none-such")
    assert "llama" in [model.model for model in listed.models]
    assert "completion" in told.capabilities
    assert version["version"].count(".") == 2
    assert raised.value.status_code == 404


async def test_with_keys_a_request_without_one_is_refused_in_the_same_form(served):
    async with served(auth="keys") as server:
        refused = await server.http.get("/api/tags")
        unknown = await server.http.get("/api/blobs", headers={"authorization": "Bearer key"})
    assert (refused.status_code, "send an API key" in refused.json()["error"]) == (401, True)
    assert (unknown.status_code, "there is no '/api/blobs'" in unknown.json()["error"]) == (404, True)


@pytest.mark.parametrize("name", ["scripted", "scripted:latest", "llama", "llama:latest"])
@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "load"),
        ({"keep_alive": "5m"}, "load"),
        ({"keep_alive": -1}, "load"),
        ({"keep_alive": 0}, "unload"),
        ({"keep_alive": "0"}, "unload"),
        ({"keep_alive": "0s"}, "unload"),
    ],
)
async def test_a_request_without_a_question_says_that_the_model_is_there(served, name, fields, reason):
    services = scripted()
    async with served(services, models={"llama": ""}) as server, opened(server) as client:
        for streams in (False, True):
            told = [
                await client.generate(name, **fields, stream=streams),
                await client.generate(name, "", system="be brief", **fields, stream=streams),
                await client.chat(name, [], **fields, stream=streams),
            ]
            if streams:
                told = [part for answer in told async for part in answer]
            assert [(part.model, part.done, part.done_reason) for part in told] == [(name, True, reason)] * 3
            assert [told[0].response, told[2].message.content] == ["", ""]
        await client.chat(name, [HI])
    assert len(services.inference.commands) == 1


@pytest.mark.parametrize("streams", [False, True])
async def test_an_empty_name_is_the_default_model_which_the_answer_names(served, streams):
    requests = {
        "/api/chat": [{"messages": [HI]}, {"messages": []}],
        "/api/generate": [{"prompt": "hi"}, {"prompt": "hi", "raw": True}, {}],
    }
    async with served() as server:
        for path, bodies in requests.items():
            for body in bodies:
                answered = await server.http.post(path, json={"model": "", "stream": streams, **body})
                names = {json.loads(line)["model"] for line in answered.text.splitlines()}
                assert names == {"scripted"}, (path, body)
        embedded = await server.http.post("/api/embed", json={"model": "", "input": "one"})
    assert embedded.json()["model"] == "embedder"


async def test_an_unknown_model_is_not_loaded(served):
    async with served() as server, opened(server) as client:
        for ask in (client.generate, client.chat, client.embed):
            with pytest.raises(ollama.ResponseError, match="there is no model 'none-such'"):
                await ask("none-such:latest")


async def test_texts_have_vectors(served):
    async with served(models={"mini": "embedder"}) as server, opened(server) as client:
        many = await client.embed("mini:latest", ["one", "two three"], dimensions=2, truncate=True, keep_alive="5m")
        one = await client.embed("mini", "one")
        none = await client.embed("mini", [])
        body = {"model": "mini", "input": "one", "truncate": True, "keep_alive": "5m"}
        whole = (await server.http.post("/api/embed", json=body)).json()
        old = await client.embeddings("embedder", "one")
        nothing = await client.embeddings("mini", "")
        given = (await server.http.post("/v1/embeddings", json={"model": "embedder", "input": "one"})).json()
    assert (many.model, [len(vector) for vector in many.embeddings]) == ("mini:latest", [2, 2])
    assert whole["pagantic"] == {"ignored": ["keep_alive", "truncate"]}
    assert (many.total_duration > 0, many.prompt_eval_count > 0) == (True, True)
    assert one.embeddings == [old.embedding] == [given["data"][0]["embedding"]]
    assert (none.embeddings, nothing.embedding) == ([], [])


@pytest.mark.parametrize(
    "body", [{"input": "a"}, {"model": "embedder", "input": 1}, {"model": "", "input": ["a"], "dimensions": 9}]
)
async def test_a_wrong_embedding_is_refused(served, body):
    async with served() as server:
        told = await server.http.post("/api/embed", json=body)
    assert (told.status_code, bool(told.json()["error"])) == (400, True)


OWN, IDLE = ModelInfo("own", 4096, ("chat",), 7, "ab" * 32), ModelInfo("idle", 4096, ("chat",), 9, "cd" * 32)


@asynccontextmanager
async def serving_models(path, *, auth="none", **fields):
    """Serve two models with files, of which one is loaded."""
    services = scripted()
    services.inference.more_models = (OWN, IDLE)
    states = (ServedModel(OWN, is_loaded=True), ServedModel(IDLE))
    serving = ScriptedServing(ReplicaReport("local", "local", LOAD, states))
    async with (
        deployment(path, services, models_served=serving, **fields) as world,
        serving_http(world, models={"llama": ""}, auth=auth) as server,
    ):
        yield server


async def test_models_have_sizes_and_digests_and_those_in_memory_are_listed(tmp_path):
    async with serving_models(tmp_path) as server, opened(server) as client:
        listed = {model.model: model for model in (await client.list()).models}
        running = await client.ps()
    assert (listed["own"].size, listed["own"].digest) == (7, "ab" * 32)
    assert (listed["llama"].size, len(listed["llama"].digest)) == (0, 64)
    assert listed["llama"].digest != listed["scripted"].digest
    [model] = running.models
    assert (model.model, model.name, model.size, model.digest) == ("own", "own", 7, "ab" * 32)
    assert (model.context_length, model.expires_at.year) == (4096, 9999)


async def test_a_caller_who_operates_nothing_sees_all_models_with_files_as_in_memory(tmp_path):
    async with serving_models(tmp_path, auth="keys", admin_keys=lambda: {ADMIN.key_id: STORED}) as server:
        request = pb.CreateKeyRequest(tenant="acme", subject="ci", scopes=[key_pb2.KEY_SCOPE_EXECUTE])
        made = await server.world.stub.CreateKey(request, metadata=[("authorization", f"Bearer {ADMIN.text}")])
        listed = [
            (await server.http.get("/api/ps", headers={"authorization": f"Bearer {key}"})).json()["models"]
            for key in (made.text, ADMIN.text)
        ]
    assert [[model["name"] for model in models] for models in listed] == [["own", "idle"], ["own"]]


async def test_a_local_caller_without_a_key_operates_nothing_by_the_key_of_the_gateway(tmp_path, monkeypatch):
    monkeypatch.setenv("PAGANTIC_API_KEY", ADMIN.text)
    async with serving_models(tmp_path, auth="local", admin_keys=lambda: {ADMIN.key_id: STORED}) as server:
        listed = (await server.http.get("/api/ps")).json()["models"]
    assert [model["name"] for model in listed] == ["own", "idle"]
