"""Stored chat completions over HTTP, with OpenAI's own client."""

import json
import uuid

import openai
import pytest

from pagantic_common.client import AsyncClient
from pagantic_common.domain.errors import Internal
from tests.integration.http.test_native import body
from tests.integration.http.test_responses import client_of
from tests.support.calls_at_once import counting_calls
from tests.support.scripted_services import ScriptedInference, answer, scripted_services

MESSAGES = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "hi"}]


async def made_by(client, **fields):
    return await client.chat.completions.create(model="", messages=MESSAGES, store=True, **fields)


async def test_a_stored_chat_is_found_with_all_its_choices(served):
    async with served() as server, client_of(server) as client:
        made = await made_by(client, n=2, metadata={"topic": "greeting"})
        found = await client.chat.completions.retrieve(made.id)
        told = found.to_dict()
        assert (found.choices, found.usage, told["metadata"]) == (made.choices, made.usage, {"topic": "greeting"})
        messages = await client.chat.completions.messages.list(made.id)
        assert [(one.role, one.content) for one in messages.data] == [("system", "Be kind."), ("user", "hi")]


async def test_stored_messages_have_the_roles_and_the_ids_that_were_sent(served):
    call = {"id": "toolu_a/b+c=", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    messages = [
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": ""},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": ""},
        {"role": "system", "content": "Answer."},
    ]
    async with served() as server, client_of(server) as client:
        made = await client.chat.completions.create(model="", messages=messages, store=True)
        stored = (await client.chat.completions.messages.list(made.id)).data
    assert [(one.role, one.content) for one in stored] == [(one["role"], one["content"] or "") for one in messages]
    assert [one.to_dict() for one in stored[2].tool_calls] == [call]
    assert stored[3].to_dict()["tool_call_id"] == call["id"]


async def test_stored_chats_are_listed_by_model_and_metadata_oldest_first(served):
    async with served(models={"*": ""}) as server, client_of(server) as client:
        await server.chat()
        chats = client.chat.completions
        ids = [
            (await chats.create(model=name, messages=MESSAGES, store=True, metadata={"n": name})).id for name in "aab"
        ]
        assert [one.id async for one in chats.list()] == ids
        assert [one.id for one in (await chats.list(order="desc", limit=2)).data] == [ids[2], ids[1]]
        assert [one.id for one in (await chats.list(after=ids[0])).data] == ids[1:]
        assert [one.id for one in (await chats.list(model="b")).data] == [ids[2]]
        assert [one.id for one in (await chats.list(model="")).data] == ids
        assert [one.id for one in (await chats.list(metadata={"n": "a"})).data] == ids[:2]


async def test_a_page_of_large_chats_ends_before_it_fills_the_memory(served):
    services = scripted_services(ScriptedInference(*[answer("x" * 600_000)] * 12))
    async with served(services) as server, client_of(server) as client:
        ids = [(await made_by(client)).id for _ in range(12)]
        page = await client.chat.completions.list(limit=100)
        assert ([one.id for one in page.data], page.has_more) == (ids[:4], True)
        assert [one.id async for one in page] == ids


@pytest.mark.parametrize(("size", "choices", "at_once"), [(300_000, 1, 1), (300_000, 3, 1), (1, 1, 8)])
async def test_a_list_reads_large_chats_one_after_another(served, monkeypatch, size, choices, at_once):
    services = scripted_services(ScriptedInference(*[answer("x" * size)] * 20 * choices))
    async with served(services) as server, client_of(server) as client:
        ids = [(await made_by(client, n=choices)).id for _ in range(20 if size == 1 else 8)]
        reads = counting_calls(monkeypatch, AsyncClient, "get_execution")
        assert [chat.id async for chat in client.chat.completions.list(limit=100)] == ids
    assert reads.largest == at_once


async def test_a_page_ends_with_a_chat_that_it_has(served):
    async with served() as server, client_of(server) as client:
        incomplete = {"model": "", "created": 1, "metadata": {}, "n": 2}
        chats = []
        for _ in range(2):
            chats.append(await made_by(client))
            await poisoned(server, "chat.completion", incomplete)
        pages = [page async for page in (await client.chat.completions.list(limit=1)).iter_pages()]
        assert [(page.data[0].id, page.has_more) for page in pages] == [(chats[0].id, True), (chats[1].id, False)]
        assert [page.to_dict()["last_id"] for page in pages] == [chats[0].id, chats[1].id]


async def test_the_metadata_of_a_stored_chat_is_replaced(served):
    async with served() as server, client_of(server) as client:
        made = await made_by(client, metadata={"a": "b"})
        changed = await client.chat.completions.update(made.id, metadata={"c": "d"})
        assert changed.to_dict()["metadata"] == {"c": "d"}
        assert await client.chat.completions.retrieve(made.id) == changed


async def test_a_deleted_chat_is_gone_with_its_choices(served):
    async with served() as server, client_of(server) as client:
        made = await made_by(client, n=2)
        request_id = made.to_dict()["pagantic"]["request_id"]
        assert (await server.http.get(f"/v1/executions/{request_id}.2")).status_code == 200
        assert (await client.chat.completions.delete(made.id)).deleted
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.retrieve(made.id)
        assert (await server.http.get(f"/v1/executions/{request_id}.2")).status_code == 404


async def test_what_failed_or_was_not_stored_is_not_found(served):
    services = scripted_services(ScriptedInference(Internal("broken"), answer("hello")))
    async with served(services) as server, client_of(server) as client:
        with pytest.raises(openai.InternalServerError) as failed:
            await made_by(client)
        plain = await client.chat.completions.create(model="", messages=MESSAGES)
        for unknown in (failed.value.response.headers["x-request-id"], plain.id, "chatcmpl-", "chatcmpl-a b"):
            with pytest.raises(openai.NotFoundError):
                await client.chat.completions.retrieve(unknown)
        assert (await client.chat.completions.list()).data == []


ECHO = {"model": "default", "created": 1, "metadata": {}, "n": 1}
POISONS = {
    "many choices": ECHO | {"n": 100_000},
    "no choices": ECHO | {"n": 0},
    "a text": ECHO | {"n": "x"},
    "missing keys": {"n": 100_000},
    "other kinds": {"model": 1, "created": [], "metadata": "x", "n": {}},
    "a list": [],
    "not JSON": None,
}


async def poisoned(server, kind, echo):
    """Run a request whose metadata are those of a stored object, and return its id."""
    text = "{" if echo is None else json.dumps(echo)
    metadata = {"openai.object": kind, "openai.request": text}
    request = body(uuid.uuid4().hex, keep_request=True, metadata=metadata)
    answer = await server.http.post("/v1/executions", json=request)
    assert answer.status_code == 200, answer.text
    return answer.json()["request_id"]


async def test_metadata_that_another_client_wrote_breaks_no_list(served, monkeypatch):
    asked = []
    get = AsyncClient.get_execution

    async def counted(self, request_id):
        asked.append(request_id)
        return await get(self, request_id)

    monkeypatch.setattr(AsyncClient, "get_execution", counted)
    async with served() as server, client_of(server) as client:
        made = await made_by(client, n=2)
        for echo in POISONS.values():
            poison = await poisoned(server, "chat.completion", echo)
            path = f"/v1/chat/completions/chatcmpl-{poison}"
            for method in ("GET", "DELETE", "POST"):
                answer = await server.http.request(method, path, json={"metadata": {}} if method == "POST" else None)
                assert (answer.status_code, echo) == (404, echo)
        assert [one.id async for one in client.chat.completions.list()] == [made.id]
        assert [one.id async for one in client.chat.completions.list(metadata={"a": "b"})] == []
    assert len(asked) < 100


async def test_metadata_that_another_client_wrote_breaks_no_response(served):
    echoes = [
        *POISONS.values(),
        {"created_at": 1, "as_sent": []},
        {"created_at": 1, "as_sent": {"functions": {"f": {}}}},
    ]
    async with served() as server:
        for echo in echoes:
            poison = await poisoned(server, "response", echo)
            assert (await server.http.get(f"/v1/responses/resp_{poison}")).status_code == 404
        whole = {"created_at": 1, "id": "x", "status": "queued", "as_sent": {"format": {"type": "json_schema"}}}
        odd = await poisoned(server, "response", whole)
        found = (await server.http.get(f"/v1/responses/resp_{odd}")).json()
    assert (found["id"], found["status"]) == (f"resp_{odd}", "completed")


async def test_values_that_another_client_wrote_break_no_conversation(served):
    async with served() as server:
        for value in ("[]", '"x"', '{"a": 1}', "7"):
            await server.http.patch("/v1/sessions/s", json={"state_json": {"openai.metadata": value}})
            found = await server.http.get("/v1/conversations/s")
            assert (found.status_code, found.json()["metadata"]) == (200, {})
