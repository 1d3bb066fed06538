"""Callers' API keys reach the orchestrator, which alone judges them."""

import os
from contextlib import asynccontextmanager

import pytest

from pagantic.orchestrator.v1 import key_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.domain.calls.api_keys import StoredKey, hash_of, make_key
from pagantic_common.domain.calls.principal import DEFAULT_TENANT, Scope
from pagantic_common.rpc.call import call_unary
from services.orchestrator.core.model.keys import ExecutionKey
from tests.support.mcp_app import call, deployment, initialize, result_in, serving_mcp

ADMIN = make_key(os.urandom)
STORED = StoredKey(DEFAULT_TENANT, ADMIN.key_id, "admin", frozenset(Scope), hash_of(ADMIN.secret), 0.0)


@pytest.fixture
def guarded(tmp_path):
    @asynccontextmanager
    async def serve():
        keys = {"admin_keys": lambda: {ADMIN.key_id: STORED}}
        async with deployment(tmp_path, **keys) as world, serving_mcp(world, auth="keys") as server:
            yield server

    return serve


def bearer(text):
    return {"authorization": f"Bearer {text}"}


async def key_of(server, tenant, *scopes):
    request = pb.CreateKeyRequest(tenant=tenant, subject="ci", scopes=scopes)
    stub = server.world.stub
    made = await call_unary("orchestrator", stub.CreateKey, request, 10.0, credentials=f"Bearer {ADMIN.text}")
    return made.text


async def test_an_execution_belongs_to_the_tenant_of_the_callers_key(guarded):
    async with guarded() as server:
        key = await key_of(server, "acme", key_pb2.KEY_SCOPE_EXECUTE)
        session = await server.open_session(**bearer(key))
        answered = await server.post(call("ask", {"question": "Who am I?"}), session=session, **bearer(key))
        request_id = result_in(answered)["result"]["_meta"]["pagantic/request_id"]
        stored = await server.world.stub.journal.get(ExecutionKey("acme", request_id))
    assert stored.state.name == "COMPLETE"


async def test_a_key_without_the_scope_is_refused_in_words(guarded):
    async with guarded() as server:
        key = await key_of(server, "acme", key_pb2.KEY_SCOPE_READ)
        result = result_in(await server.post(call("ask", {"question": "May I?"}), **bearer(key)))["result"]
    assert result["isError"]
    assert "AUTH_DENIED" in result["content"][0]["text"]
    assert "scope" in result["content"][0]["text"]


async def test_an_unknown_key_opens_no_session(guarded):
    async with guarded() as server:
        refused = await server.post(initialize(), **bearer(make_key(os.urandom).text))
        assert (refused.status_code, server.app.sessions.count) == (401, 0)


async def test_no_answer_shows_a_key(guarded):
    async with guarded() as server:
        unknown, reader = make_key(os.urandom).text, await key_of(server, "acme", key_pb2.KEY_SCOPE_READ)
        refused = await server.post(call("ask", {"question": "x"}), **bearer(unknown))
        failed = await server.post(call("ask", {"question": "x"}), **bearer(reader))
    assert refused.status_code == 401
    assert result_in(failed)["result"]["isError"]
    assert unknown not in refused.text
    assert reader not in failed.text
