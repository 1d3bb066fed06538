"""The policy for a request's context: which chunks to retrieve, and where they go."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pagantic_common.domain.messages import Role


class Retriever(StrEnum):
    """A way to find chunks. The values are stored in journals: do not change them."""

    UNSPECIFIED = "RETRIEVER_UNSPECIFIED"
    BM25 = "RETRIEVER_BM25"
    VECTOR = "RETRIEVER_VECTOR"
    HYBRID = "RETRIEVER_HYBRID"
    KEYWORD = "RETRIEVER_KEYWORD"


class ScoreFusion(StrEnum):
    """A way to fuse the scores of several scorers."""

    WEIGHTED = "weighted"
    RECIPROCAL_RANK = "reciprocal_rank"


@dataclass(frozen=True, slots=True)
class WeightedScorer:
    """A scorer of the rerank service with its weight and its model; an empty model is that service's setting."""

    scorer: str
    weight: float | None = None
    model: str = ""


@dataclass(frozen=True, slots=True)
class RankingOptions:
    """Several scorers whose scores are fused, and how to spread the chunks that are kept; 0 is not set."""

    scorers: tuple[WeightedScorer, ...] = ()
    fusion: ScoreFusion = ScoreFusion.WEIGHTED
    diversity: float = 0.0
    max_per_source: int = 0


@dataclass(frozen=True, slots=True)
class ContextPolicy:
    """Which context to retrieve; an empty collection, 0 and None mean not set."""

    retriever: Retriever
    collection: str
    max_chunks: int = 0
    min_score: float | None = None
    is_after_system: bool = False
    scorer: str | None = None
    top_k: int = 0
    ranking: RankingOptions = RankingOptions()
    max_tokens: int = 0
    includes_tools: bool = False
    includes_schema: bool = False
    is_required: bool = False
    is_system: bool = False

    @property
    def role(self) -> Role:
        """The role in which the model reads the context."""
        if self.is_system:
            return Role.SYSTEM
        return Role.USER
