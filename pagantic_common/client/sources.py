"""The client's methods that read what a deployment has to answer from: collections, tools, prompt templates."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence

from pagantic.common.v1 import chunk_pb2
from pagantic.context.v1 import collection_pb2, context_service_pb2, context_service_pb2_grpc, policy_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.client.administration import OrchestratorCalls

RETRIEVED_CHUNKS = 10


class Sources(OrchestratorCalls):
    """Listing tools needs a key with the scope EXECUTE, the rest READ. The orchestrator's port serves both."""

    async def list_collections(self) -> list[collection_pb2.Collection]:
        """Return the collections of documents by name."""
        request = context_service_pb2.ListCollectionsRequest()
        return list((await self._call(self._context_stub().ListCollections, request)).collections)

    async def retrieve(
        self, collection: str, query: str, *, max_chunks: int = RETRIEVED_CHUNKS
    ) -> Sequence[chunk_pb2.Chunk]:
        """Return the chunks of a collection that fit a query, the best first; raises NotFound."""
        policy = policy_pb2.ContextPolicy(collection=collection, max_chunks=max_chunks)
        request = context_service_pb2.RetrieveRequest(query=query, policy=policy)
        return (await self._call(self._context_stub().Retrieve, request)).chunks

    async def list_tools(self) -> list[pb.CallableTool]:
        """Return the tools that the caller's requests may name, by name, without those that are denied."""
        return list((await self._call(self._stub().ListTools, pb.ListToolsRequest())).tools)

    async def list_prompt_templates(self) -> list[pb.ConfiguredTemplate]:
        """Return the prompt templates of the deployment by name."""
        request = pb.ListPromptTemplatesRequest()
        return list((await self._call(self._stub().ListPromptTemplates, request)).templates)

    async def render_prompt_template(self, name: str, variables: Mapping[str, str], *, session_id: str = "") -> str:
        """Return the text that a request with this template would have as its system prompt.

        Raises InvalidRequest for an unknown template, and for a variable that is missing or unknown.
        """
        template = execution_pb2.PromptTemplate(name=name, variables=variables)
        request = pb.RenderPromptTemplateRequest(template=template, session_id=session_id)
        return (await self._call(self._stub().RenderPromptTemplate, request)).text

    @abstractmethod
    def _context_stub(self) -> context_service_pb2_grpc.ContextServiceAsyncStub:
        """Return the stub of the collections that the orchestrator's port serves."""
