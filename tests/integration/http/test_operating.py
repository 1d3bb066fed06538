"""Sessions, collections, tools, replicas and models over HTTP."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import httpx
import pytest

from pagantic_common.domain.calls.api_keys import StoredKey, hash_of
from pagantic_common.domain.calls.principal import DEFAULT_TENANT, Scope
from pagantic_common.domain.errors import Aborted, ErrorCode, InvalidRequest, Unavailable
from pagantic_common.domain.messages import ToolSafety
from services.orchestrator.ports.serving import ReplicaReport
from tests.integration.http.test_native import body
from tests.integration.orchestrator.test_identity import ADMIN
from tests.support.http_app import serving_http
from tests.support.mcp_app import deployment
from tests.support.real_collections import real_collections
from tests.support.scripted_services import ScriptedTools, scripted_services
from tests.support.scripted_serving import ScriptedServing

READS = StoredKey(DEFAULT_TENANT, ADMIN.key_id, "reader", frozenset({Scope.READ}), hash_of(ADMIN.secret), 0.0)
SET_TITLE = {"state_json": {"title": '"Lamps"'}}


@pytest.fixture
def with_collections(tmp_path):
    """Return what serves before a real context service."""

    @asynccontextmanager
    async def serve(**settings):
        async with (
            real_collections(tmp_path) as collections,
            deployment(tmp_path, collections=collections) as world,
            serving_http(world, **settings) as server,
        ):
            yield server

    return serve


async def test_a_conversation_is_listed_read_by_page_given_values_and_deleted(served):
    async with served() as server:
        for text in ("one", "two"):
            await server.http.post("/v1/executions", json=body(text, session_id="s"))
        listed = (await server.http.get("/v1/sessions")).json()
        newest = (await server.http.get("/v1/sessions/s", params={"max_messages": 3})).json()
        before = {"before_position": newest["first_position"]}
        oldest = (await server.http.get("/v1/sessions/s", params=before)).json()
        untitled = (await server.http.get("/v1/sessions", params={"state_key": "title"})).json()
        changed = (await server.http.patch("/v1/sessions/s", json=SET_TITLE)).json()
        titled = (await server.http.get("/v1/sessions", params={"state_key": "title"})).json()
        long = {"state_json": {"title": f'"{"x" * 1024}"'}}
        await server.http.patch("/v1/sessions/s", json=long)
        too_long = (await server.http.get("/v1/sessions", params={"state_key": "title"})).json()
        cleared = (await server.http.patch("/v1/sessions/s", json={"removed_keys": ["title"]})).json()
        gone = await server.http.delete("/v1/sessions/s")
        missing = await server.http.get("/v1/sessions/s")
    assert [(one["session_id"], one["message_count"]) for one in listed["sessions"]] == [("s", 4)]
    assert (len(newest["messages"]), newest["messages"][-1]["content"]) == (3, "hello")
    assert [message["content"] for message in oldest["messages"]] == ["hi"]
    assert (changed["state_json"], cleared.get("state_json")) == (SET_TITLE["state_json"], None)
    assert ["state_json" in page["sessions"][0] for page in (listed, untitled, too_long)] == [False] * 3
    assert titled["sessions"][0]["state_json"] == SET_TITLE["state_json"]
    assert (gone.status_code, missing.status_code) == (200, 404)


@pytest.mark.parametrize(
    "change",
    [
        {"session_id": "other"},
        {"appended_messages": [{"role": "ROLE_USER", "content": "x"}]},
        {"replaced_messages": {"0": {"role": "ROLE_USER", "removed": True}}},
        {"state_json": 1},
        [],
    ],
)
async def test_a_change_of_a_session_that_cannot_be_is_refused(served, change):
    async with served() as server:
        assert (await server.http.patch("/v1/sessions/s", json=change)).status_code == 400


async def test_tools_have_their_origin_safety_and_action(served):
    tools = ScriptedTools(safety=ToolSafety.WRITE)
    async with served(scripted_services(tools=tools, policy="*=ask")) as server:
        [tool] = (await server.http.get("/v1/tools")).json()["tools"]
    assert (tool["definition"]["name"], tool["definition"]["safety"]) == ("clock", "TOOL_SAFETY_WRITE")
    assert (tool["available"], tool["action"], tool.get("origin", "")) == (True, "TOOL_ACTION_ASK", "")


async def test_replicas_have_their_loads_and_models_and_one_that_is_away_its_error(tmp_path):
    serving = ScriptedServing()
    away = ReplicaReport("local", "ipv4:127.0.0.1:1", error=Unavailable("gone", code=ErrorCode.INFERENCE_ENGINE_ERROR))
    serving.replicas.append(away)
    async with deployment(tmp_path, models_served=serving) as world, serving_http(world) as server:
        found = (await server.http.get("/v1/replicas")).json()
    here, lost = found["replicas"]
    assert (here["load"]["running_sequences"], here["load"]["output_tokens_total"]) == (3, "1000")
    assert [model["name"] for model in here["models"]] == ["scripted", "embedder"]
    assert [state.get("is_loaded", False) for state in here["states"]] == [True, False]
    assert (lost["error"]["code"], "load" in lost) == ("ERROR_CODE_INFERENCE_ENGINE_ERROR", False)
    assert found["max_executions"] == 8


async def test_a_model_is_loaded_and_unloaded_and_a_failure_of_all_replicas_is_the_answer(tmp_path):
    serving = ScriptedServing()
    serving.replicas.append(replace(serving.replicas[0], address="other"))
    async with deployment(tmp_path, models_served=serving) as world, serving_http(world) as server:
        loaded = (await server.http.post("/v1/models/embedder/load")).json()["results"]
        unloaded = (await server.http.post("/v1/models/embedder/unload")).json()["results"]
        serving.failures = [Aborted("in use", retry_after_s=1.0)]
        partly = await server.http.post("/v1/models/embedder/unload")
        unknown = {"unknown_model": "a/name"}
        serving.failures = [InvalidRequest("no model", code=ErrorCode.CONFIG_NO_ENGINE, details=unknown)] * 2
        refused = await server.http.post("/v1/models/a/name/load")
    assert [one["address"] for one in loaded] == ["local", "other"]
    assert [one["was_loaded"] for one in unloaded] == [True, True]
    assert (partly.status_code, ["error" in one for one in partly.json()["results"]]) == (200, [True, False])
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "CONFIG_NO_ENGINE")


async def test_what_operators_do_needs_the_scope_admin(tmp_path):
    keys = {"admin_keys": lambda: {READS.key_id: READS}}
    calls = [("GET", "replicas"), ("GET", "pulled-models"), ("POST", "models/x/load"), ("POST", "models/x/unload")]
    async with deployment(tmp_path, **keys) as world, serving_http(world) as server:
        headers = {"authorization": f"Bearer {ADMIN.text}"}
        refused = [await server.http.request(method, f"/v1/{path}", headers=headers) for method, path in calls]
    assert {(one.status_code, one.json()["error"]["code"]) for one in refused} == {(403, "AUTH_DENIED")}


async def test_pulled_models_and_the_catalog_are_listed(served, tmp_path, monkeypatch):
    monkeypatch.setenv("PAGANTIC_MODELS_FOLDER", str(tmp_path / "none"))
    async with served() as server:
        found = (await server.http.get("/v1/pulled-models")).json()
    assert found["pulled"] == []
    assert "smollm2:135m" in {model["name"] for model in found["catalog"]}


async def test_files_become_documents_that_are_found_until_the_collection_is_deleted(with_collections):
    async with with_collections() as server:
        made = (await server.http.post("/v1/collections", json={"name": "notes"})).json()
        taken = await server.http.post("/v1/collections", json={"name": "notes"})
        stored = await send(server, "a.md", b"The red lamp costs 42.", "text/markdown")
        again = await send(server, "a.md", b"The red lamp costs 42.")
        broken = await send(server, "b.pdf", b"%PDF-1.4 is no more than this")
        query = {"query": "red lamp", "policy": {"filter": 'source == "a.md"'}}
        found = (await server.http.post("/v1/collections/notes/search", json=query)).json()
        listed = (await server.http.get("/v1/collections")).json()["collections"]
        gone = await server.http.delete("/v1/collections/notes")
        missing = await server.http.delete("/v1/collections/notes")
    assert (made["name"], taken.status_code) == ("notes", 409)
    assert (stored.json()["outcome"], stored.json()["chunk_count"]) == ("FILE_OUTCOME_ADDED", 1)
    assert again.json()["outcome"] == "FILE_OUTCOME_UNCHANGED"
    assert (broken.status_code, broken.json()["outcome"]) == (200, "FILE_OUTCOME_FAILED")
    assert broken.json()["error"]["message"]
    assert [chunk["content"] for chunk in found["chunks"]] == ["The red lamp costs 42."]
    assert [(one["name"], one["document_count"]) for one in listed] == [("notes", 1)]
    assert (gone.status_code, missing.status_code) == (200, 404)


async def test_a_file_that_is_too_large_or_has_no_name_is_refused_and_nothing_is_stored(with_collections):
    async with with_collections(max_file_bytes=1024, max_body_bytes=1024) as server:
        small = await send(server, "a.txt", b"x" * 1024)
        large = await send(server, "b.txt", b"x" * 1_000_000)
        nameless = await send(server, "", b"x")
        listed = (await server.http.get("/v1/collections")).json()["collections"]
    assert (small.status_code, large.status_code, nameless.status_code) == (200, 413, 400)
    assert "1024 bytes" in large.json()["error"]["message"]
    assert [one["document_count"] for one in listed] == [1]


async def test_a_client_that_leaves_while_it_sends_a_file_leaves_nothing_behind(with_collections):
    async def half():
        yield b"The red lamp "
        await asyncio.sleep(0.2)
        raise OSError("the client is gone")

    async with with_collections() as server:
        with pytest.raises((OSError, httpx.TransportError)):
            await send(server, "a.txt", half())
        for _ in range(100):
            if not server.app.entry.request_count:
                break
            await asyncio.sleep(0.05)
        assert server.app.entry.request_count == 0
        listed = (await server.http.get("/v1/collections")).json()["collections"]
    assert [one.get("document_count", 0) for one in listed] in ([], [0])


def send(server, name, content, media_type="application/octet-stream"):
    headers = {"content-type": media_type}
    return server.http.post("/v1/collections/notes/files", params={"source": name}, content=content, headers=headers)
