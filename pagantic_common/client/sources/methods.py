"""The client's methods for a deployment's sources of answers: collections, tools and prompt templates."""

from __future__ import annotations

import asyncio
import os
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence

from pagantic.common.v1 import chunk_pb2
from pagantic.context.v1 import collection_pb2, context_service_pb2, context_service_pb2_grpc, file_pb2, policy_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.client.sources.files import find_files
from pagantic_common.client.sources.models import Models
from pagantic_common.client.sources.retrievers import best_retriever
from pagantic_common.client.sources.upload import IngestedFiles, OnFile, upload_files, upload_parts
from pagantic_common.domain.errors import InvalidRequest, NotFound

RETRIEVED_CHUNKS = 10


class Sources(Models):
    """Methods for collections, tools and prompt templates, all served at the orchestrator's port.

    Listing tools needs a key with the scope EXECUTE; other reads need READ.
    """

    _timeout_s: float

    async def list_collections(self) -> list[collection_pb2.Collection]:
        """Return the collections of documents, sorted by name."""
        request = context_service_pb2.ListCollectionsRequest()
        return list((await self._call(self._context_stub().ListCollections, request)).collections)

    async def get_collection(self, name: str) -> collection_pb2.Collection:
        """Return a collection of documents. Raises NotFound if it does not exist."""
        for collection in await self.list_collections():
            if collection.name == name:
                return collection
        raise NotFound(f"no collection is named {name!r}: `pagantic collections list` lists them")

    async def create_collection(
        self, request: str | context_service_pb2.CreateCollectionRequest
    ) -> collection_pb2.Collection:
        """Create an empty collection with this name, or as the request specifies.

        Raises Conflict if the name is taken. Needs a key with the scope WRITE.
        """
        if isinstance(request, str):
            request = context_service_pb2.CreateCollectionRequest(name=request)
        return (await self._call(self._context_stub().CreateCollection, request)).collection

    async def delete_collection(self, name: str) -> None:
        """Remove a collection and its documents. Raises NotFound if it does not exist.

        Needs a key with the scope WRITE.
        """
        request = context_service_pb2.DeleteCollectionRequest(name=name)
        await self._call(self._context_stub().DeleteCollection, request)

    async def search(self, request: context_service_pb2.RetrieveRequest) -> context_service_pb2.RetrieveResponse:
        """Return the chunks that match a query, taking and returning protobuf messages."""
        return await self._call(self._context_stub().Retrieve, request)

    async def retrieve(
        self, collection: str | policy_pb2.ContextPolicy, query: str, *, max_chunks: int = RETRIEVED_CHUNKS
    ) -> Sequence[chunk_pb2.Chunk]:
        """Return the chunks of a collection that match a query, best first. Raises NotFound for an unknown collection.

        `collection` may be a policy instead of a name with `max_chunks`. Only the policy's search settings apply.
        """
        policy = collection
        if isinstance(policy, str):
            policy = policy_pb2.ContextPolicy(collection=policy, max_chunks=max_chunks)
        return (await self.search(context_service_pb2.RetrieveRequest(query=query, policy=policy))).chunks

    async def ingest_files(
        self,
        collection: str,
        paths: Iterable[str | os.PathLike[str]],
        *,
        file_timeout_s: float | None = None,
        on_file: OnFile | None = None,
    ) -> IngestedFiles:
        """Store files and the files of folders in a collection, which is created if it does not exist.

        Needs a key with the scope WRITE. The service detects the format of each file. An unreadable file does not stop
        the ingest, and is listed in the result's `failed`. Raises OSError for an unreadable path, TypeError for a
        single path instead of a list, InvalidRequest if the paths name no files, and DeadlineExceeded if a file takes
        too long.

        Args:
            collection: Name of the collection.
            paths: Files and folders; hidden files in folders are omitted. Each path becomes the source of its document.
            file_timeout_s: Maximum time for a file, in seconds; None selects the client's timeout.
            on_file: Called with the result of each file, outside the event loop's thread, so that it may block and use
                a Client.
        """
        files = await asyncio.to_thread(find_files, paths)
        if not files:
            raise InvalidRequest("the paths have no files: name files, or folders that have some")
        timeout_s = file_timeout_s or self._timeout_s
        return await upload_files(self._call_ingest, collection, files, timeout_s=timeout_s, on_file=on_file)

    async def ingest_content(
        self, collection: str, source: str, parts: AsyncIterable[bytes], *, media_type: str = ""
    ) -> file_pb2.FileResult:
        """Store a file, received in parts, in a collection. A missing collection is created.

        Needs a key with the scope WRITE. If the service cannot read the file, the result contains the error. Raises
        DeadlineExceeded if the whole call takes longer than the client's timeout.

        Args:
            collection: Name of the collection.
            source: Source of the document. Its extension determines the format if the bytes do not.
            parts: The bytes of the file. If the iterator raises, nothing is stored, and this method raises the same
                exception.
            media_type: Media type of the file. If empty, it is detected from the bytes and the source.
        """
        header = file_pb2.FileHeader(source=source, media_type=media_type)
        return await upload_parts(self._call_ingest, collection, header, parts, timeout_s=self._timeout_s)

    async def list_tools(self) -> list[pb.CallableTool]:
        """Return the tools that the caller's requests may name, sorted by name and without denied tools."""
        return list((await self._call(self._stub().ListTools, pb.ListToolsRequest())).tools)

    async def list_prompt_templates(self) -> list[pb.ConfiguredTemplate]:
        """Return the prompt templates of the deployment, sorted by name."""
        request = pb.ListPromptTemplatesRequest()
        return list((await self._call(self._stub().ListPromptTemplates, request)).templates)

    async def render_prompt_template(self, name: str, variables: Mapping[str, str], *, session_id: str = "") -> str:
        """Return the system prompt that a request with this template would have.

        Raises InvalidRequest if the template is unknown, or if a variable is missing or unknown.
        """
        template = execution_pb2.PromptTemplate(name=name, variables=variables)
        request = pb.RenderPromptTemplateRequest(template=template, session_id=session_id)
        return (await self._call(self._stub().RenderPromptTemplate, request)).text

    async def _choose_retriever(self, name: str, *, hypothetical_document: bool) -> str:
        """Return the best retriever for the embeddings of a collection."""
        return best_retriever(await self.get_collection(name), hypothetical_document=hypothetical_document)

    @abstractmethod
    def _call_ingest(
        self, requests: AsyncIterator[context_service_pb2.IngestFilesRequest]
    ) -> AsyncGenerator[context_service_pb2.IngestFilesResponse, None]:
        """Call IngestFiles with a stream of requests of any total length."""

    @abstractmethod
    def _context_stub(self) -> context_service_pb2_grpc.ContextServiceAsyncStub:
        """Return the stub for the collections, which the orchestrator's port serves."""
