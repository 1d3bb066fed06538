"""ContextService on the orchestrator's port, through which callers reach their own tenant's collections."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractContextManager, aclosing
from types import MappingProxyType
from typing import Any, TypeVar

import grpc

from pagantic.context.v1 import context_service_pb2 as pb
from pagantic.context.v1 import context_service_pb2_grpc as pb_grpc
from pagantic_common.domain.calls.principal import Scope
from pagantic_common.domain.errors import PaganticError, PermissionDenied
from pagantic_common.rpc.call import StreamMethod
from pagantic_common.rpc.peer import Credentials, Peer
from pagantic_common.rpc.reading import relayed
from pagantic_common.telemetry.scope import current_principal
from services.orchestrator.app.access.audit import Audit
from services.orchestrator.app.failures import error_from
from services.orchestrator.app.policy.permit import check_collection, check_model
from services.orchestrator.app.running.registry import Registry
from services.orchestrator.core.model.keys import account_of
from services.orchestrator.ports.policy import Action, Policy

SERVICE_NAME = "pagantic.context.v1.ContextService"
MAX_NAME_CHARS = 64  # longer names are rejected
Context = grpc.aio.ServicerContext[Any, Any]
ResponseT = TypeVar("ResponseT")

# The scope that each method requires.
SCOPES: Mapping[str, Scope] = MappingProxyType(
    {
        "ListCollections": Scope.READ,
        "Retrieve": Scope.READ,
        "BuildContext": Scope.READ,
        "CreateCollection": Scope.WRITE,
        "DeleteCollection": Scope.WRITE,
        "Verify": Scope.READ,
        "Ingest": Scope.WRITE,
        "IngestFiles": Scope.WRITE,
        "IngestFolder": Scope.WRITE,
        "Reembed": Scope.WRITE,
        "Delete": Scope.WRITE,
    }
)


class ContextProxy(pb_grpc.ContextServiceServicer):
    """Forwards calls to the context service on behalf of the caller's tenant.

    Calls that store, embed or verify documents count as running work of the caller.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        audit: Audit,
        policy: Policy | None,
        patience_s: float,
        *,
        credentials: Credentials,
        registry: Registry,
    ) -> None:
        self._audit = audit
        self._registry = registry
        self._policy = policy
        self._stub: pb_grpc.ContextServiceAsyncStub = pb_grpc.ContextServiceStub(channel)
        self._peer = Peer("context", channel, patience_s=patience_s, credentials=credentials)

    def add_to(self, server: grpc.aio.Server) -> None:
        """Add the service to a server."""
        pb_grpc.add_ContextServiceServicer_to_server(self, server)

    async def CreateCollection(
        self, request: pb.CreateCollectionRequest, context: Context
    ) -> pb.CreateCollectionResponse:
        await self._begin_change("CreateCollection", request.name)
        return await self._pass_on(self._stub.CreateCollection, request)

    async def ListCollections(self, request: pb.ListCollectionsRequest, context: Context) -> pb.ListCollectionsResponse:
        return await self._pass_on(self._stub.ListCollections, request)

    async def DeleteCollection(
        self, request: pb.DeleteCollectionRequest, context: Context
    ) -> pb.DeleteCollectionResponse:
        await self._begin_change("DeleteCollection", request.name)
        return await self._pass_on(self._stub.DeleteCollection, request)

    async def Ingest(self, request: pb.IngestRequest, context: Context) -> pb.IngestResponse:
        await self._begin_change("Ingest", request.collection)
        with self._counted():
            return await self._pass_on(self._stub.Ingest, request)

    async def IngestFiles(
        self, requests: AsyncIterator[pb.IngestFilesRequest], context: Context
    ) -> AsyncIterator[pb.IngestFilesResponse]:
        with self._counted():
            first = await anext(requests, pb.IngestFilesRequest())
            await self._begin_change("IngestFiles", first.collection)
            sent = _all_of(first, relayed(requests))
            async with aclosing(self._pass_on_stream(self._stub.IngestFiles, sent)) as responses:
                async for response in responses:
                    yield response

    async def IngestFolder(
        self, request: pb.IngestFolderRequest, context: Context
    ) -> AsyncIterator[pb.IngestFolderResponse]:
        await self._begin_change("IngestFolder", request.collection)
        with self._counted():
            async with aclosing(self._pass_on_stream(self._stub.IngestFolder, request)) as responses:
                async for response in responses:
                    yield response

    async def Reembed(self, request: pb.ReembedRequest, context: Context) -> pb.ReembedResponse:
        await self._begin_change("Reembed", request.collection)
        with self._counted():
            return await self._pass_on(self._stub.Reembed, request)

    async def Verify(self, request: pb.VerifyRequest, context: Context) -> pb.VerifyResponse:
        self._check("Verify", Action.RETRIEVE, request.collection)
        with self._counted():
            return await self._pass_on(self._stub.Verify, request)

    async def Delete(self, request: pb.DeleteRequest, context: Context) -> pb.DeleteResponse:
        await self._begin_change("Delete", request.collection)
        return await self._pass_on(self._stub.Delete, request)

    async def Retrieve(self, request: pb.RetrieveRequest, context: Context) -> pb.RetrieveResponse:
        self._check("Retrieve", Action.RETRIEVE, request.policy.collection)
        return await self._pass_on(self._stub.Retrieve, request)

    async def BuildContext(self, request: pb.BuildContextRequest, context: Context) -> pb.BuildContextResponse:
        if not request.chunks:  # Given chunks need no retrieval.
            self._check("BuildContext", Action.RETRIEVE, request.policy.collection)
        if self._policy is not None:
            check_model(self._policy, request.model)
        return await self._pass_on(self._stub.BuildContext, request)

    def _counted(self) -> AbstractContextManager[None]:
        """Count the enclosed work as running work of the caller. Raises Overloaded if a limit is reached."""
        return self._registry.counted(account_of(current_principal()), 0)

    def _check(self, method: str, action: Action, collection: str) -> None:
        """Raise PermissionDenied if a policy denies the collection."""
        if self._policy is None:
            return
        try:
            check_collection(self._policy, action, collection[:MAX_NAME_CHARS])
        except PermissionDenied as denied:
            self._audit.note_denied(f"ContextService/{method}", current_principal(), denied)
            raise

    async def _begin_change(self, method: str, collection: str) -> None:
        """Record a change before it is made. Raises PermissionDenied if a policy denies the change."""
        self._check(method, Action.CHANGE, collection)
        await self._audit.record(f"ContextService/{method}", f"collection {collection[:MAX_NAME_CHARS]}")

    async def _pass_on(self, method: grpc.aio.UnaryUnaryMultiCallable[Any, ResponseT], request: Any) -> ResponseT:
        try:
            return await self._peer.call_unary(method, request)
        except PaganticError as error:
            raise error_from(error) from None

    async def _pass_on_stream(self, method: StreamMethod[ResponseT], request: Any) -> AsyncGenerator[ResponseT, None]:
        try:
            async with aclosing(self._peer.call_stream(method, request)) as responses:
                async for response in responses:
                    yield response
        except PaganticError as error:
            raise error_from(error) from None


async def _all_of(
    first: pb.IngestFilesRequest, others: AsyncIterator[pb.IngestFilesRequest]
) -> AsyncIterator[pb.IngestFilesRequest]:
    yield first
    async for request in others:
        yield request
