"""The operations that give numbers for texts: decisions, moderations, vectors and orders of relevance."""

from __future__ import annotations

from gateway.http.document.operations import Operation, Operations, Tag
from gateway.http.document.shapes.moderations import ModerationReport
from gateway.http.document.shapes.pooling import EmbeddingList, Ranking
from gateway.http.document.shapes.responses import DecisionList
from gateway.http.openai.judging.decision_forms import DecisionForm
from gateway.http.openai.judging.moderations import ModerationForm
from gateway.http.pooling.embeddings import EmbeddingForm
from gateway.http.pooling.reranking import RerankForm


def _rerank(name: str) -> Operation:
    return Operation(Tag.RERANK, name, "Put documents in the order of their relevance.", RerankForm, Ranking)


JUDGING_OPERATIONS: Operations = {
    ("POST", "/v1/moderations"): Operation(
        Tag.OPENAI, "moderate", "Tell whether texts may be harmful.", ModerationForm, ModerationReport
    ),
    ("POST", "/v1/decisions"): Operation(
        Tag.OPENAI, "decide", "Answer questions about an input.", DecisionForm, DecisionList
    ),
    ("POST", "/v1/embeddings"): Operation(
        Tag.OPENAI, "createEmbeddings", "Make vectors of texts.", EmbeddingForm, EmbeddingList
    ),
    ("POST", "/rerank"): _rerank("rerank"),
    ("POST", "/v1/rerank"): _rerank("rerankV1"),
    ("POST", "/v2/rerank"): _rerank("rerankV2"),
}
