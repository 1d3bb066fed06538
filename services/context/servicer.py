"""Serves ContextService over gRPC: decodes each request, calls the use case and encodes the response."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from types import MappingProxyType
from typing import Any

import grpc

from pagantic.context.v1 import context_service_pb2 as pb
from pagantic.context.v1 import context_service_pb2_grpc as pb_grpc
from pagantic_common.codec.chunks import chunk_from_proto
from pagantic_common.domain.calls.principal import Scope
from pagantic_common.telemetry.scope import current_principal
from services.context.app.building import ContextBuilding
from services.context.app.embedding import BackgroundEmbedding
from services.context.app.file_ingest import FileIngest
from services.context.app.library import Library
from services.context.app.retrieval import Retrieval
from services.context.app.verification import Verification
from services.context.convert import (
    built_context_to_proto,
    collection_to_proto,
    document_from_proto,
    file_part_from_proto,
    file_result_to_proto,
    found_to_proto,
    ingest_result_to_proto,
    policy_from_proto,
    report_to_proto,
    selection_from_proto,
    summary_to_proto,
)
from services.context.core.document import CollectionKey
from services.context.core.reading.files import FilesSummary

Context = grpc.aio.ServicerContext[Any, Any]

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


class ContextServicer(pb_grpc.ContextServiceServicer):
    """Serves the library, its embeddings, retrieval and the construction of context messages."""

    def __init__(
        self,
        library: Library,
        embedding: BackgroundEmbedding,
        verification: Verification,
        retrieval: Retrieval,
        building: ContextBuilding,
        *,
        files: FileIngest,
    ) -> None:
        self._library = library
        self._files = files
        self._embedding = embedding
        self._verification = verification
        self._retrieval = retrieval
        self._building = building

    async def CreateCollection(
        self, request: pb.CreateCollectionRequest, context: Context
    ) -> pb.CreateCollectionResponse:
        model: str | None = None
        if request.HasField("embedding_model"):
            model = request.embedding_model
        collection = await self._library.create_collection(_key(request.name), model, request.language)
        return pb.CreateCollectionResponse(collection=collection_to_proto(collection))

    async def ListCollections(self, request: pb.ListCollectionsRequest, context: Context) -> pb.ListCollectionsResponse:
        collections = await self._library.list_collections(current_principal().tenant)
        return pb.ListCollectionsResponse(collections=[collection_to_proto(collection) for collection in collections])

    async def DeleteCollection(
        self, request: pb.DeleteCollectionRequest, context: Context
    ) -> pb.DeleteCollectionResponse:
        await self._library.delete_collection(_key(request.name))
        return pb.DeleteCollectionResponse()

    async def Ingest(self, request: pb.IngestRequest, context: Context) -> pb.IngestResponse:
        documents = [document_from_proto(document) for document in request.documents]
        result = await self._library.ingest(_key(request.collection), documents)
        self._embedding.wake()
        return ingest_result_to_proto(result)

    async def IngestFiles(
        self, requests: AsyncIterator[pb.IngestFilesRequest], context: Context
    ) -> AsyncIterator[pb.IngestFilesResponse]:
        first = await anext(requests, pb.IngestFilesRequest())
        parts = (file_part_from_proto(request) async for request in requests)
        async with aclosing(self._files.ingest_files(_key(first.collection), parts)) as events:
            async for event in events:
                if isinstance(event, FilesSummary):
                    yield pb.IngestFilesResponse(summary=summary_to_proto(event))
                else:
                    self._embedding.wake()
                    yield pb.IngestFilesResponse(file=file_result_to_proto(event))

    async def IngestFolder(
        self, request: pb.IngestFolderRequest, context: Context
    ) -> AsyncIterator[pb.IngestFolderResponse]:
        selection = selection_from_proto(request)
        async with aclosing(self._files.ingest_folder(_key(request.collection), selection)) as events:
            async for event in events:
                if isinstance(event, FilesSummary):
                    yield pb.IngestFolderResponse(summary=summary_to_proto(event))
                else:
                    self._embedding.wake()
                    yield pb.IngestFolderResponse(file=file_result_to_proto(event))

    async def Reembed(self, request: pb.ReembedRequest, context: Context) -> pb.ReembedResponse:
        collection = await self._embedding.change_model(_key(request.collection), request.embedding_model)
        return pb.ReembedResponse(collection=collection_to_proto(collection))

    async def Verify(self, request: pb.VerifyRequest, context: Context) -> pb.VerifyResponse:
        return report_to_proto(await self._verification.verify(_key(request.collection), request.embedding_sample))

    async def Delete(self, request: pb.DeleteRequest, context: Context) -> pb.DeleteResponse:
        deleted = await self._library.delete_documents(_key(request.collection), request.sources)
        return pb.DeleteResponse(deleted=deleted)

    async def Retrieve(self, request: pb.RetrieveRequest, context: Context) -> pb.RetrieveResponse:
        tenant, policy = current_principal().tenant, policy_from_proto(request.policy)
        return found_to_proto(await self._retrieval.retrieve(tenant, request.query, policy, request.more_queries))

    async def BuildContext(self, request: pb.BuildContextRequest, context: Context) -> pb.BuildContextResponse:
        tenant, policy = current_principal().tenant, policy_from_proto(request.policy)
        chunks = [chunk_from_proto(chunk) for chunk in request.chunks]
        built = await self._building.build(
            tenant, request.query, policy, chunks, request.model, more_queries=request.more_queries
        )
        return built_context_to_proto(built, is_fenced=policy.is_fenced)


def _key(name: str) -> CollectionKey:
    return CollectionKey(current_principal().tenant, name)
