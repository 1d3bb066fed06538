"""Retrieval policies: where to search, how to score, and what to keep."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pagantic_common.domain.chunks import check_min_score
from pagantic_common.domain.errors import InvalidRequest, Unsupported
from services.context.core.document import check_collection_name


class Retriever(StrEnum):
    """Ways to score; the value is the score_kind."""

    BM25 = "bm25"
    KEYWORD = "keyword"
    VECTOR = "cosine"
    HYBRID = "rrf"


SUPPORTED = (Retriever.BM25, Retriever.KEYWORD)


@dataclass(frozen=True, slots=True)
class RetrievalPolicy:
    """Where to search and what to keep.

    `max_chunks` of 0 or less keeps all, `max_tokens` of 0 is the service's default, and a retriever of a newer version
    is None.
    """

    collection: str
    retriever: Retriever | None = Retriever.BM25
    max_chunks: int = 0
    min_score: float | None = None
    max_tokens: int = 0
    is_fenced: bool = True

    def check(self) -> None:
        """Raise InvalidRequest for a policy that is wrong even without retrieval."""
        if self.retriever is None:
            known = ", ".join(f"RETRIEVER_{retriever.name}" for retriever in SUPPORTED)
            raise InvalidRequest(f"policy.retriever is not known: use one of {known}")
        if self.max_tokens < 0:
            raise InvalidRequest(f"policy.max_tokens is {self.max_tokens}: it must not be negative")

    def check_retrieval(self, query: str) -> None:
        """Raise InvalidRequest for a query or policy that cannot be searched with, and Unsupported."""
        self.check()
        check_collection_name("policy.collection", self.collection)
        check_min_score("policy.min_score", self.min_score)
        if not query.strip():
            raise InvalidRequest("query is empty")
        if self.retriever is not None and self.retriever not in SUPPORTED:
            name = f"RETRIEVER_{self.retriever.name}"
            raise Unsupported(f"{name} arrives in a later version: use RETRIEVER_BM25 or RETRIEVER_KEYWORD")
