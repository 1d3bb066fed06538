"""The ports of the app."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pagantic_common.domain.chunks import Chunk
from pagantic_common.domain.messages import Message


@dataclass(frozen=True, slots=True)
class ScorerInfo:
    """A scorer for callers; its scores are in [min_score, max_score], and higher is better."""

    name: str
    description: str
    min_score: float
    max_score: float


class Scorer(Protocol):
    """A way to score chunks for a query; the same input has the same scores."""

    @property
    def info(self) -> ScorerInfo:
        """The scorer for callers."""

    async def score(self, query: str, chunks: Sequence[Chunk], model: str) -> Sequence[float | None]:
        """Return a score for each chunk, None for a chunk that cannot be scored; raises if no chunk can be scored.

        An empty model means the service's setting. A scorer without a model ignores it.
        """


@dataclass(frozen=True, slots=True)
class Continuation:
    """The natural logarithm of a continuation's probability, and the number of its tokens."""

    logprob: float
    token_count: int


class PairScorer(Protocol):
    """Reads a query together with each text."""

    async def score_pairs(self, model: str, query: str, texts: Sequence[str]) -> list[float]:
        """Return the score of each text, without bounds; raises the inference service's errors."""


class LanguageModel(Protocol):
    """Weighs possible continuations of a conversation."""

    async def weigh(self, model: str, prompt: Sequence[Message], continuations: Sequence[str]) -> list[Continuation]:
        """Return each continuation's probability after the prompt; raises the inference service's errors."""
