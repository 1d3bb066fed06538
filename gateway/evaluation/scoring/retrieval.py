"""Scores of retrieval: nDCG and recall of documents, and the share of quotes that are found in their sources."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from pydantic import Field

from gateway.evaluation.scoring.scorer import Expectation, Score, Scorer, Subject
from pagantic.common.v1 import chunk_pb2

NOTED_DOCUMENTS = 5


class RankScorer(Scorer):
    """Scores the order of the documents of retrieved chunks. The best chunk of a document determines its rank."""

    k: int = Field(default=10, ge=1, le=1000)

    def lacks(self, expectation: Expectation) -> str:
        """Return `relevant` if the case does not name relevant documents."""
        if any(grade > 0 for grade in (expectation.relevant or {}).values()):
            return ""
        return "relevant"

    async def score(self, subject: Subject) -> Score:
        """Retrieve as the request does, but without additional queries, and score the order of the documents."""
        ranked = documents_of(await subject.chunks())
        value = self.value_of(ranked[: self.k], subject.expectation.relevant or {})
        return Score(value, f"found {', '.join(ranked[:NOTED_DOCUMENTS]) or 'nothing'}")

    @abstractmethod
    def value_of(self, ranked: Sequence[str], grades: Mapping[str, float]) -> float:
        """Return the score of the first k documents."""


class Ndcg(RankScorer):
    """The discounted gain of the first k documents as a share of the best possible gain."""

    type: Literal["ndcg"] = "ndcg"

    def value_of(self, ranked: Sequence[str], grades: Mapping[str, float]) -> float:
        """Return nDCG, with the grades as gains. Source: Järvelin, Kekäläinen, 2002, as in trec_eval."""
        best = sorted((max(0.0, grade) for grade in grades.values()), reverse=True)[: self.k]
        return _discounted(max(0.0, grades.get(document, 0.0)) for document in ranked) / _discounted(best)


class Recall(RankScorer):
    """The share of the relevant documents that are among the first k."""

    type: Literal["recall"] = "recall"

    def value_of(self, ranked: Sequence[str], grades: Mapping[str, float]) -> float:
        """Return the recall of the relevant documents."""
        relevant = {document for document, grade in grades.items() if grade > 0}
        return len(relevant.intersection(ranked)) / len(relevant)


class Quotes(Scorer):
    """The share of an answer's citations whose quotes occur in a retrieved chunk of the cited document.

    An answer without citations has the score 0.
    """

    type: Literal["quotes"] = "quotes"

    async def score(self, subject: Subject) -> Score:
        """Look up each citation's quote in the retrieved chunks."""
        citations = subject.answer.response.citations
        if not citations:
            return Score(0.0, "the answer has no citations")
        chunks = await subject.chunks()
        held = [
            any(chunk.source == citation.document and citation.quote in chunk.content for chunk in chunks)
            for citation in citations
            if citation.quote
        ]
        return Score(sum(held) / len(citations), f"{sum(held)} of {len(citations)} quotes hold")


def documents_of(chunks: Iterable[chunk_pb2.Chunk]) -> list[str]:
    """Return each document of the chunks once, in the order of its best chunk."""
    return list(dict.fromkeys(chunk.source for chunk in chunks))


def _discounted(gains: Iterable[float]) -> float:
    return math.fsum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, 1))
