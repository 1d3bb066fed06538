"""The shapes of vectors and of rankings."""

from __future__ import annotations

from typing import Any, Literal

from gateway.http.document.shapes.shape import ABSENT, AnswerShape, IgnoredFields, PromptUsage


class EmbeddingObject(AnswerShape):
    """A vector: numbers, or their bytes as base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingList(AnswerShape):
    """The vectors of the texts, in their order."""

    object: Literal["list"]
    data: list[EmbeddingObject]
    model: str
    usage: PromptUsage
    pagantic: IgnoredFields = ABSENT


class RankedDocument(AnswerShape):
    """A document by its place in the request, with its relevance."""

    index: int
    relevance_score: float
    document: dict[str, Any] = ABSENT


class Ranking(AnswerShape):
    """The documents, the most relevant first."""

    id: str
    object: Literal["list"]
    model: str
    results: list[RankedDocument]
    usage: PromptUsage
    pagantic: IgnoredFields = ABSENT
