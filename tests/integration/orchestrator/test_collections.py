"""Collections through the orchestrator's port: each tenant reaches its own, with a real context service behind."""

import asyncio
import json
import os
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from pagantic.common.v1 import error_pb2
from pagantic.context.v1 import collection_pb2, file_pb2, policy_pb2
from pagantic.context.v1 import context_service_pb2 as pb
from pagantic.context.v1 import context_service_pb2_grpc as rpc
from pagantic_common.client import AsyncClient, Client
from pagantic_common.domain.calls.api_keys import StoredKey, hash_of, make_key
from pagantic_common.domain.calls.principal import Scope
from pagantic_common.domain.errors import (
    DeadlineExceeded,
    ErrorCode,
    Internal,
    InvalidRequest,
    NotFound,
    Overloaded,
    PaganticError,
    PermissionDenied,
    Unauthenticated,
)
from pagantic_common.rpc.access.gate import Guard
from pagantic_common.rpc.access.registration import Registration
from pagantic_common.rpc.access.tenant_tokens import (
    TenantTokens,
    read_signing_key,
    write_key_pair,
)
from pagantic_common.rpc.call import call_stream, call_unary
from pagantic_common.settings import Auth
from pagantic_common.telemetry.clock import SystemClock
from pagantic_common.testing.server import serving
from services.context.__main__ import open_app
from services.context.servicer import SCOPES as OWN_SCOPES
from services.context.settings import ContextSettings
from services.orchestrator.adapters.access.cedar_policy import read_policy
from services.orchestrator.adapters.context_proxy import SCOPES, SERVICE_NAME, ContextProxy
from services.orchestrator.app.access.audit import Audit
from services.orchestrator.app.access.keys import Keys
from services.orchestrator.app.running.registry import Registry

RED_FOX = collection_pb2.Document(source="a", content="the red fox")
POLICY = policy_pb2.ContextPolicy(collection="docs")


class NoKeys:
    """A store without keys: all of them are the operator's."""

    async def find_key(self, _key_id):
        return None


class Records:
    """An audit's store."""

    def __init__(self):
        self.entries = []

    def add_audit_entry(self, entry, *, can_wait=False):
        self.entries.append(entry)
        stored = asyncio.get_running_loop().create_future()
        stored.set_result(None)
        return stored


class Callers:
    """API keys, each with a tenant and scopes."""

    def __init__(self):
        self._stored = {}

    def add(self, tenant, *scopes):
        key = make_key(os.urandom)
        self._stored[key.key_id] = StoredKey(tenant, key.key_id, "ci", frozenset(scopes), hash_of(key.secret), 0.0)
        return key.text

    def authenticator(self):
        return Keys(NoKeys(), lambda: self._stored, SystemClock())


@pytest.fixture
def callers():
    return Callers()


@asynccontextmanager
async def door(path, callers, **options):
    """Serve a context service that wants tenant tokens, and the door before it; yields a stub."""
    async with serving_door(path, callers, **options) as (channel, _):
        yield rpc.ContextServiceStub(channel)


@asynccontextmanager
async def serving_door(path, callers, *, signing=None, policy=None, records=None, registry=None, **limits):
    """Serve as `door` does, with these `limits` of calls; yields the channel and the address."""
    own_signing, verifying = write_key_pair(path / "identity")
    settings = ContextSettings(
        port=0, auth=Auth.TOKENS, verifying_keys_file=verifying, data_folder=path / "context", embedding_model=""
    )
    async with open_app(settings) as registrations, serving(registrations) as (to_context, _):
        credentials = TenantTokens(read_signing_key(signing or own_signing)).credentials
        audit = Audit(records or Records(), SystemClock())
        registry = registry or Registry(64, 1 << 20)
        opened = ContextProxy(to_context, audit, policy, 5.0, credentials=credentials, registry=registry)
        registration = Registration(SERVICE_NAME, opened.add_to, SCOPES, Guard(callers.authenticator()))
        async with serving([registration], **limits) as served:
            yield served


async def ask(stub, method, request, key):
    """Return the answer of a method; of a stream of answers, the last one."""
    credentials = f"Bearer {key}"
    if method not in STREAMS:
        return await call_unary("orchestrator", getattr(stub, method), request, 10, credentials=credentials)
    answers = call_stream("orchestrator", getattr(stub, method), request, 10, credentials=credentials)
    return [answer async for answer in answers][-1]


def ingest():
    return pb.IngestRequest(collection="docs", documents=[RED_FOX])


async def ingest_files():
    yield pb.IngestFilesRequest(collection="docs")
    yield pb.IngestFilesRequest(header=file_pb2.FileHeader(source="a"))
    yield pb.IngestFilesRequest(content=file_pb2.FilePart(data=b"the red ", is_last=False))
    yield pb.IngestFilesRequest(content=file_pb2.FilePart(data=b"fox", is_last=True))


# For each method, the request for what another tenant has too, or has alone.
REQUESTS = {
    "ListCollections": pb.ListCollectionsRequest,
    "Retrieve": lambda: pb.RetrieveRequest(query="fox", policy=POLICY),
    "BuildContext": lambda: pb.BuildContextRequest(query="fox", policy=POLICY),
    "CreateCollection": lambda: pb.CreateCollectionRequest(name="docs"),
    "DeleteCollection": lambda: pb.DeleteCollectionRequest(name="docs"),
    "Ingest": ingest,
    "IngestFiles": ingest_files,
    "IngestFolder": lambda: pb.IngestFolderRequest(collection="docs", root="shelf"),
    "Delete": lambda: pb.DeleteRequest(collection="docs", sources=["a"]),
    "Reembed": lambda: pb.ReembedRequest(collection="docs"),
    "Verify": lambda: pb.VerifyRequest(collection="docs"),
}
MAKES = ("CreateCollection", "Ingest", "IngestFiles", "ListCollections")
STREAMS = ("IngestFiles", "IngestFolder")


def test_the_door_asks_for_what_the_service_asks_for():
    methods = {method.name for method in pb.DESCRIPTOR.services_by_name["ContextService"].methods}
    assert set(SCOPES) == set(REQUESTS) == methods
    assert dict(SCOPES) == dict(OWN_SCOPES)


@pytest.mark.parametrize("method", sorted(SCOPES))
async def test_another_tenants_collection_is_as_unknown_as_none(tmp_path, callers, method):
    acme, beta = (callers.add(tenant, *Scope) for tenant in ("acme", "beta"))
    async with door(tmp_path, callers) as stub:
        await ask(stub, "Ingest", ingest(), acme)
        if method in MAKES:
            reply = await ask(stub, method, REQUESTS[method](), beta)
            if method == "ListCollections":
                assert not reply.collections
        elif method == "IngestFolder":
            with pytest.raises(PermissionDenied, match="folders of the server are the operator's"):
                await ask(stub, method, REQUESTS[method](), beta)
        else:
            with pytest.raises(NotFound, match="no collection is named 'docs'"):
                await ask(stub, method, REQUESTS[method](), beta)
        kept = await ask(stub, "Retrieve", REQUESTS["Retrieve"](), acme)
        assert [chunk.content for chunk in kept.chunks] == ["the red fox"]


@pytest.mark.parametrize("method", sorted(SCOPES))
async def test_every_method_needs_its_scope(tmp_path, callers, method):
    key = callers.add("acme", *(scope for scope in Scope if scope is not SCOPES[method]))
    async with door(tmp_path, callers) as stub:
        with pytest.raises(PermissionDenied, match=f"needs the scope '{SCOPES[method].value}'"):
            await ask(stub, method, REQUESTS[method](), key)


async def test_nobody_gets_in_without_a_key(tmp_path, callers):
    async with door(tmp_path, callers) as stub:
        with pytest.raises(Unauthenticated) as refused:
            await call_unary("orchestrator", stub.Ingest, ingest(), 10)
        assert refused.value.code is ErrorCode.AUTH_MISSING


async def test_a_refusal_of_the_orchestrator_is_not_told_as_one_of_the_caller(tmp_path, callers):
    foreign, _ = write_key_pair(tmp_path / "foreign")
    key = callers.add("acme", *Scope)
    async with door(tmp_path, callers, signing=foreign) as stub:
        with pytest.raises(Internal) as failed:
            await ask(stub, "Ingest", ingest(), key)
        assert failed.value.code is ErrorCode.ORCHESTRATION_DEPENDENCY_FAILED


@pytest.mark.parametrize("method", sorted(SCOPES))
async def test_a_policy_says_which_collections_a_tenant_may_use(tmp_path, callers, method):
    path = tmp_path / "policies"
    path.write_text('permit(principal == Tenant::"acme", action, resource == Collection::"docs");')
    acme, beta = (callers.add(tenant, *Scope) for tenant in ("acme", "beta"))
    async with door(tmp_path, callers, policy=read_policy(path)) as stub:
        await ask(stub, "Ingest", ingest(), acme)
        # It is there, nobody counts tokens here, and folders are the operator's.
        if method not in ("CreateCollection", "BuildContext", "IngestFolder"):
            await ask(stub, method, REQUESTS[method](), acme)
        if method != "ListCollections":
            with pytest.raises(PermissionDenied, match="collection 'docs': no policy permits it") as denied:
                await ask(stub, method, REQUESTS[method](), beta)
            assert denied.value.code is ErrorCode.AUTH_POLICY


@pytest.mark.parametrize("method", sorted(SCOPES))
async def test_changes_are_recorded_and_reads_are_not(tmp_path, callers, method):
    records, acme = Records(), callers.add("acme", *Scope)
    async with door(tmp_path, callers, records=records) as stub:
        with suppress(PaganticError):
            await ask(stub, method, REQUESTS[method](), acme)
    found = [(one.tenant, one.method, one.resource) for one in records.entries]
    is_change = SCOPES[method] is Scope.WRITE
    assert found == [("acme", f"ContextService/{method}", "collection docs")] * is_change


async def test_files_go_through_the_door_and_the_operators_folders_for_the_default_tenant(
    tmp_path, callers, monkeypatch
):
    (tmp_path / "shelf").mkdir()
    (tmp_path / "shelf" / "b.md").write_text("# Foxes\n\nThe red fox.", encoding="utf-8")
    monkeypatch.setenv("PAGANTIC_CONTEXT_INGEST_ROOTS", json.dumps({"shelf": str(tmp_path / "shelf")}))
    key = callers.add("default", *Scope)
    async with door(tmp_path, callers) as stub:
        sent = await ask(stub, "IngestFiles", ingest_files(), key)
        served = await ask(stub, "IngestFolder", REQUESTS["IngestFolder"](), key)
        assert (sent.summary.added, served.summary.added, served.summary.collection.document_count) == (1, 1, 2)
        with pytest.raises(NotFound, match="no folder is named 'shell': the folders are 'shelf'"):
            await ask(stub, "IngestFolder", pb.IngestFolderRequest(collection="docs", root="shell"), key)


async def test_the_client_stores_files_and_folders_and_tells_of_each(tmp_path, callers):
    folder = tmp_path / "files"
    (folder / "in").mkdir(parents=True)
    (folder / "a.txt").write_text("the red fox", encoding="utf-8")
    (folder / "in" / "b.md").write_text("# Foxes\n\nthe grey fox", encoding="utf-8")
    (folder / "c.bin").write_bytes(b"\xff\xfe")
    key, told = callers.add("acme", *Scope), []
    async with serving_door(tmp_path, callers) as (_, address), AsyncClient(address, api_key=key) as client:
        ingested = await client.ingest_files("docs", [folder, str(folder / "a.txt")], on_file=told.append)
        assert (ingested.summary.added, ingested.summary.unchanged, ingested.summary.failed) == (2, 1, 1)
        assert ingested.summary.collection.document_count == 2
        sources = [(folder / name).as_posix() for name in ("a.txt", "c.bin", "in/b.md", "a.txt")]
        assert [result.source for result in told] == sources
        assert [(result.source, result.error.code) for result in ingested.failed] == [
            (sources[1], error_pb2.ERROR_CODE_CONFIG_INVALID)
        ]
        assert [chunk.source for chunk in await client.retrieve("docs", "grey fox")][:1] == [sources[2]]


async def test_the_client_raises_for_paths_that_it_cannot_send(tmp_path, callers):
    (tmp_path / "empty").mkdir()
    key = callers.add("acme", *Scope)
    async with serving_door(tmp_path, callers) as (_, address), AsyncClient(address, api_key=key) as client:
        with pytest.raises(FileNotFoundError, match="nowhere"):
            await client.ingest_files("docs", [tmp_path / "nowhere.txt"])
        with pytest.raises(InvalidRequest, match="the paths have no files"):
            await client.ingest_files("docs", [tmp_path / "empty"])
        with pytest.raises(OSError, match="/proc/self/mem"):  # it opens, and cannot be read
            await client.ingest_files("docs", ["/proc/self/mem"])
        (tmp_path / "a.txt").write_text("the red fox", encoding="utf-8")
        with pytest.raises(DeadlineExceeded, match="no file was stored within"):
            await client.ingest_files("docs", [tmp_path / "a.txt"], file_timeout_s=1e-6)
        with pytest.raises(PermissionDenied):
            async with AsyncClient(address, api_key=callers.add("acme", Scope.READ)) as reader:
                await reader.ingest_files("docs", [tmp_path / "a.txt"])


async def test_the_blocking_client_stores_files_too(tmp_path, callers):
    (tmp_path / "a.txt").write_text("the red fox", encoding="utf-8")
    key = callers.add("acme", *Scope)
    async with serving_door(tmp_path, callers) as (_, address):

        def store():
            with Client(address, api_key=key) as client:
                return client.ingest_files("docs", [tmp_path / "a.txt"])

        assert (await asyncio.to_thread(store)).summary.added == 1


async def test_what_is_called_for_each_file_may_use_the_client(tmp_path, callers):
    names = [f"{number}.txt" for number in range(3)]
    for name in names:
        (tmp_path / name).write_text(f"the red fox {name}", encoding="utf-8")
    key, told = callers.add("acme", *Scope), []
    async with serving_door(tmp_path, callers) as (_, address):

        def store():
            with Client(address, api_key=key) as client:

                def note(result):
                    told.append((Path(result.source).name, client.list_collections()[0].name))

                client.ingest_files("docs", [tmp_path / name for name in names], on_file=note)

        await asyncio.to_thread(store)
    assert told == [(name, "docs") for name in names]


async def idle():
    yield pb.IngestFilesRequest(collection="docs")
    await asyncio.Event().wait()


async def refused_or_idle(stub, key):
    """Return the refusal of an upload that sends nothing more, or None if it still runs after a moment."""
    upload = asyncio.create_task(ask(stub, "IngestFiles", idle(), key))
    await asyncio.wait([upload], timeout=0.3)
    if not upload.done():
        return upload
    with pytest.raises(Overloaded) as refused:
        await upload
    return refused.value


async def stop(uploads, registry):
    for upload in uploads:
        upload.cancel()
    await asyncio.gather(*uploads, return_exceptions=True)
    for _ in range(6000):
        if not registry.count:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the uploads did not end")


async def test_idle_uploads_of_a_tenant_keep_no_other_out(tmp_path, callers):
    acme, beta = (callers.add(tenant, *Scope) for tenant in ("acme", "beta"))
    registry = Registry(64, 1 << 20)
    async with door(tmp_path, callers, registry=registry, max_concurrent_rpcs=16) as stub:
        outcomes = [await refused_or_idle(stub, acme) for _ in range(6)]
        uploads = [outcome for outcome in outcomes if isinstance(outcome, asyncio.Task)]
        assert len(uploads) == 4, "the host has 8 places, and the key half of them"
        assert {outcome.code for outcome in outcomes if outcome not in uploads} == {ErrorCode.QUOTA_CONCURRENCY}
        other = callers.add("acme", *Scope)
        assert not (await ask(stub, "ListCollections", pb.ListCollectionsRequest(), other)).collections
        assert (await ask(stub, "Ingest", ingest(), beta)).added == 1
        await stop(uploads, registry)
        assert (await ask(stub, "Ingest", ingest(), acme)).added == 1


async def test_an_idle_upload_is_ended(tmp_path, callers):
    key = callers.add("acme", *Scope)
    async with door(tmp_path, callers, max_silence_s=0.3) as stub:
        with pytest.raises(DeadlineExceeded, match="no part of the stream came"):
            await ask(stub, "IngestFiles", then_nothing(), key)


async def then_nothing():
    await asyncio.Event().wait()
    yield pb.IngestFilesRequest()


@pytest.mark.parametrize("limit", ["max_of_tenant", "max_of_subject"])
async def test_uploads_are_running_work_of_their_caller(tmp_path, callers, limit):
    acme, beta = (callers.add(tenant, *Scope) for tenant in ("acme", "beta"))
    registry = Registry(64, 1 << 20, **{limit: 1})
    async with door(tmp_path, callers, registry=registry) as stub:
        upload = await refused_or_idle(stub, acme)
        assert registry.count == 1
        for method in ("Ingest", "IngestFiles", "IngestFolder", "Reembed", "Verify"):
            with pytest.raises(Overloaded) as refused:
                await ask(stub, method, REQUESTS[method](), acme)
            assert refused.value.code is ErrorCode.QUOTA_CONCURRENCY
        assert (await ask(stub, "Ingest", ingest(), beta)).added == 1
        await stop([upload], registry)
        assert (await ask(stub, "Ingest", ingest(), acme)).added == 1
