"""Embedding in the background, where the inference service lets nobody in without a token."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from pagantic.context.v1 import collection_pb2, policy_pb2
from pagantic.context.v1 import context_service_pb2 as pb
from pagantic.context.v1 import context_service_pb2_grpc as rpc
from pagantic_common.domain.calls.principal import work_of
from pagantic_common.domain.defaults import EMBEDDING_MODEL
from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.rpc.access.gate import Guard
from pagantic_common.rpc.access.tenant_tokens import (
    TenantTokens,
    read_signing_key,
    read_tenant_tokens,
    write_key_pair,
)
from pagantic_common.rpc.call import call_unary
from pagantic_common.settings import Auth, InnerSettings
from pagantic_common.testing.server import serving
from services.context.__main__ import open_app
from services.context.settings import ContextSettings
from tests.support.embedding import word_counting_registration

ORCHESTRATOR, CONTEXT = "orchestrator", "context"


class System:
    """A context service before an inference service that wants tokens of the orchestrator or of the context service.

    Attributes:
        callers: The tenants in whose name the inference service was called.
        denied: The codes of the calls that it denied.
        has_denied: Set at the first of them.
    """

    def __init__(self, folder):
        self._folder = folder
        self._signing, self._verifying = write_key_pair(folder / ORCHESTRATOR)
        self._own_signing, own_verifying = write_key_pair(folder / CONTEXT)
        self._known = folder / "verifying.pem"
        self._known.write_bytes(self._verifying.read_bytes() + own_verifying.read_bytes())
        self.callers, self.denied, self.has_denied = [], [], asyncio.Event()

    @asynccontextmanager
    async def serve(self, *, has_key):
        settings = InnerSettings(port=0, auth=Auth.TOKENS, verifying_keys_file=self._known)
        guard = Guard(read_tenant_tokens("inference", settings), on_denied=self._note_denied, meter=self._note)
        async with serving([word_counting_registration(EMBEDDING_MODEL, guard=guard)]) as (_, inference_address):
            settings = ContextSettings(
                port=0,
                auth=Auth.TOKENS,
                verifying_keys_file=self._verifying,
                data_folder=self._folder / "data",
                inference_address=inference_address,
                signing_key_file=self._own_signing if has_key else None,
            )
            async with (
                open_app(settings, embedding_pause_s=0.1) as registrations,
                serving(registrations) as (channel, _),
            ):
                yield rpc.ContextServiceStub(channel)

    async def call(self, method, request):
        """Call the context service as the orchestrator does, for the tenant acme."""
        credentials = TenantTokens(read_signing_key(self._signing)).credentials("context", work_of("acme"))
        return await call_unary("context", method, request, 10.0, credentials=credentials)

    def _note_denied(self, _method, _caller, error):
        self.denied.append(error.code)
        self.has_denied.set()

    async def _note(self, caller):
        self.callers.append(caller.tenant)


@pytest.fixture
def system(tmp_path):
    return System(tmp_path)


async def ingest(system, stub):
    document = collection_pb2.Document(source="a", content="apple avocado")
    return await system.call(stub.Ingest, pb.IngestRequest(collection="docs", documents=[document]))


async def test_a_key_of_its_own_lets_the_context_service_embed_for_the_tenant_of_a_collection(system):
    async with system.serve(has_key=True) as stub:
        stored = await ingest(system, stub)
        assert stored.collection.embedding_model == EMBEDDING_MODEL
        policy = policy_pb2.ContextPolicy(collection="docs", retriever=policy_pb2.RETRIEVER_VECTOR)
        request = pb.RetrieveRequest(query="apricot", policy=policy)
        found = await system.call(stub.Retrieve, request)
        while not found.chunks:  # the test's time limit ends a wait in vain
            await asyncio.sleep(0.05)
            found = await system.call(stub.Retrieve, request)
        assert [chunk.source for chunk in found.chunks] == ["a"]
    assert system.denied == []
    assert set(system.callers) == {"acme"}


async def test_without_a_key_chunks_wait_and_searches_by_words_go_on(system):
    async with system.serve(has_key=False) as stub:
        await ingest(system, stub)
        await system.has_denied.wait()
        assert system.denied[0] is ErrorCode.AUTH_MISSING
        words = pb.RetrieveRequest(query="apple", policy=policy_pb2.ContextPolicy(collection="docs"))
        assert [chunk.source for chunk in (await system.call(stub.Retrieve, words)).chunks] == ["a"]
        (listed,) = (await system.call(stub.ListCollections, pb.ListCollectionsRequest())).collections
        assert (listed.chunk_count, listed.embedded_chunk_count) == (1, 0)


async def test_a_key_that_cannot_sign_ends_the_start(tmp_path):
    (tmp_path / "none.pem").write_bytes(b"nonsense")
    settings = ContextSettings(port=0, data_folder=tmp_path / "data", signing_key_file=tmp_path / "none.pem")
    with pytest.raises(InvalidRequest, match=r"SIGNING_KEY_FILE .*Ed25519"):
        async with open_app(settings):
            pass
