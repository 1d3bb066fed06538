"""The context and rerank services, with a span and a measurement for each retrieval."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from opentelemetry.trace import SpanKind

from pagantic_common.domain.chunks import Chunk
from pagantic_common.telemetry import genai
from pagantic_common.telemetry.genai import Operation
from pagantic_common.telemetry.metrics import DURATION_BOUNDS_S, make_histogram
from pagantic_common.telemetry.names import ORCHESTRATOR_RETRIEVAL_DURATION
from pagantic_common.telemetry.tracing import span
from services.orchestrator.app.recording.observing.measured import measured
from services.orchestrator.core.model.retrieval import ContextPolicy
from services.orchestrator.ports.services import BuiltContext, ContextPort, Ranking

retrieval_duration = make_histogram(
    ORCHESTRATOR_RETRIEVAL_DURATION, "how long retrievals took that ended", unit="s", bounds=DURATION_BOUNDS_S
)


class ObservedContext(ContextPort):
    """A context and rerank service that records a span and a measurement for each retrieval.

    Tenants choose the names of collections, so no metric contains these names.
    """

    def __init__(self, context: ContextPort) -> None:
        self._context = context

    async def build(
        self, query: str, policy: ContextPolicy, model: str, more_queries: Sequence[str] = ()
    ) -> BuiltContext:
        with _retrieval(policy):
            return await self._context.build(query, policy, model, more_queries)

    async def retrieve(self, query: str, policy: ContextPolicy) -> tuple[Chunk, ...]:
        with _retrieval(policy):
            return await self._context.retrieve(query, policy)

    async def rerank(self, query: str, chunks: Sequence[Chunk], ranking: Ranking) -> tuple[Chunk, ...]:
        with span("rerank"):
            return await self._context.rerank(query, chunks, ranking)


@contextmanager
def _retrieval(policy: ContextPolicy) -> Iterator[None]:
    attributes = {
        genai.OPERATION_NAME: Operation.RETRIEVAL.value,
        genai.PROVIDER_NAME: genai.PROVIDER,
        genai.DATA_SOURCE_ID: policy.collection,
    }
    name = f"{Operation.RETRIEVAL.value} {policy.collection}".rstrip()
    with measured(name, attributes, retrieval_duration, {}, kind=SpanKind.CLIENT):
        yield
