"""The context service, restricted to the collections from which a tenant may retrieve."""

from __future__ import annotations

from collections.abc import Sequence

from pagantic_common.domain.chunks import Chunk
from services.orchestrator.app.access.permitting.checks import check_collection, check_model
from services.orchestrator.core.model.retrieval import ContextPolicy
from services.orchestrator.ports.policy import Action, Policy
from services.orchestrator.ports.services import BuiltContext, ContextPort, Ranking


class PermittedContext(ContextPort):
    """A context and rerank service that raises PermissionDenied (AUTH_POLICY) if the policy denies a collection."""

    def __init__(self, context: ContextPort, policy: Policy) -> None:
        self._context = context
        self._policy = policy

    async def build(
        self, query: str, policy: ContextPolicy, model: str, more_queries: Sequence[str] = ()
    ) -> BuiltContext:
        check_collection(self._policy, Action.RETRIEVE, policy.collection)
        check_model(self._policy, model)
        return await self._context.build(query, policy, model, more_queries)

    async def retrieve(self, query: str, policy: ContextPolicy) -> tuple[Chunk, ...]:
        check_collection(self._policy, Action.RETRIEVE, policy.collection)
        return await self._context.retrieve(query, policy)

    async def rerank(self, query: str, chunks: Sequence[Chunk], ranking: Ranking) -> tuple[Chunk, ...]:
        return await self._context.rerank(query, chunks, ranking)
