"""Defines retrieval policies: the collection, the scores, and the limits of a search."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from pagantic_common.domain.chunks import MAX_NEIGHBOURS, MAX_SMOOTHING, check_min_score
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.text.ranking import Fusion
from pagantic_common.grammar.expressions import Expression
from services.context.core.document import check_collection_name
from services.context.core.search.metadata_filter import compile_filter

DEFAULT_VECTOR_WEIGHT = 0.6
DEFAULT_SMOOTHING = 0.5  # for the retriever HYBRID
MAX_MORE_QUERIES = 8


class Retriever(StrEnum):
    """The ways to score chunks. Retrieved chunks report the value as their `score_kind`."""

    BM25 = "bm25"
    KEYWORD = "keyword"
    VECTOR = "cosine"
    HYBRID = "weighted"


@dataclass(frozen=True, slots=True)
class Expansion:
    """The text to return around each chunk: a number of neighbours on each side, or the whole section."""

    neighbours: int = 0
    has_section: bool = False


@dataclass(frozen=True, slots=True)
class RetrievalPolicy:
    """The collection to search and the limits on the chunks to keep.

    If `max_chunks` is 0 or less, all chunks are kept. A `max_tokens` of 0 selects the configured default. A retriever
    or fusion that this version does not know is None.
    """

    collection: str
    retriever: Retriever | None = Retriever.BM25
    max_chunks: int = 0
    min_score: float | None = None
    max_tokens: int = 0
    is_fenced: bool = True
    filter: str = ""
    fusion: Fusion | None = Fusion.WEIGHTED
    vector_weight: float = DEFAULT_VECTOR_WEIGHT
    smoothing: float = 0.0
    diversity: float = 0.0
    expansion: Expansion = Expansion()

    @property
    def needs_vectors(self) -> bool:
        """Whether the search reads embeddings."""
        return self.embeds_query or self.diversity > 0 or self.smoothing > 0

    @property
    def embeds_query(self) -> bool:
        """Whether the query is embedded."""
        return self.retriever in (Retriever.VECTOR, Retriever.HYBRID)

    def compiled_filter(self) -> Expression | None:
        """Return the compiled filter, or None for a policy without a filter. Raises InvalidRequest if it is invalid."""
        if not self.filter:
            return None
        return compile_filter("policy.filter", self.filter)

    def score_kind_of(self, query_count: int) -> str:
        """Return the score_kind of the chunks that a search with `query_count` queries finds."""
        if query_count > 1:
            return Fusion.RECIPROCAL_RANK.value
        if self.retriever is Retriever.HYBRID and self.fusion is not None:
            return self.fusion.value
        return str(self.retriever)

    def check(self) -> None:
        """Raise InvalidRequest if the policy is invalid even without retrieval."""
        if self.retriever is None:
            choices = ", ".join(f"RETRIEVER_{retriever.name}" for retriever in Retriever)
            raise InvalidRequest(f"policy.retriever is not known: use one of {choices}")
        if self.max_tokens < 0:
            raise InvalidRequest(f"policy.max_tokens is {self.max_tokens}: it must not be negative")

    def check_retrieval(self, query: str, more_queries: Sequence[str] = ()) -> None:
        """Raise InvalidRequest if the query or the policy cannot be used for a search."""
        self.check()
        check_collection_name("policy.collection", self.collection)
        check_min_score("policy.min_score", self.min_score)
        if not query.strip():
            raise InvalidRequest("query is empty")
        _check_more_queries(more_queries)
        if self.fusion is None:
            choices = ", ".join(f"FUSION_{fusion.name}" for fusion in Fusion)
            raise InvalidRequest(f"policy.fusion is not known: use one of {choices}")
        _check_fraction("policy.vector_weight", self.vector_weight)
        _check_fraction("policy.diversity", self.diversity)
        _check_fraction("policy.smoothing", self.smoothing, MAX_SMOOTHING)
        if not 0 <= self.expansion.neighbours <= MAX_NEIGHBOURS:
            raise InvalidRequest(
                f"policy.expansion.neighbours is {self.expansion.neighbours}: it must be 0 to {MAX_NEIGHBOURS}"
            )
        self.compiled_filter()


def _check_more_queries(queries: Sequence[str]) -> None:
    if len(queries) > MAX_MORE_QUERIES:
        raise InvalidRequest(f"more_queries has {len(queries)} entries: at most {MAX_MORE_QUERIES} are taken")
    for position, query in enumerate(queries):
        if not query.strip():
            raise InvalidRequest(f"more_queries[{position}] is empty: leave it out")


def _check_fraction(field: str, value: float, greatest: float = 1) -> None:
    if math.isnan(value) or not 0 <= value <= greatest:
        raise InvalidRequest(f"{field} is {value}: it must be in [0, {greatest}]")
