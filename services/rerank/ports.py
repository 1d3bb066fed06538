"""Defines the ports of the rerank service."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pagantic_common.domain.chunks import Chunk
from pagantic_common.domain.messages import Message


@dataclass(frozen=True, slots=True)
class ScorerInfo:
    """The description of a scorer for callers.

    The scores are in [min_score, max_score], and higher is better.
    """

    name: str
    description: str
    min_score: float
    max_score: float


class Scorer(Protocol):
    """Scores chunks for a query. The same input always gets the same scores."""

    @property
    def info(self) -> ScorerInfo:
        """The description of the scorer for callers."""

    async def score(self, query: str, chunks: Sequence[Chunk], model: str) -> Sequence[float | None]:
        """Return a score for each chunk, or None for a chunk that cannot be scored.

        Raises an error if no chunk can be scored. An empty `model` selects the configured model. A scorer that uses no
        model ignores `model`.
        """


@dataclass(frozen=True, slots=True)
class Continuation:
    """The natural logarithm of a continuation's probability, and the number of tokens in the continuation."""

    logprob: float
    token_count: int


class PairScorer(Protocol):
    """Scores texts by reading the query together with each text."""

    async def score_pairs(self, model: str, query: str, texts: Sequence[str]) -> list[float]:
        """Return the score of each text. The scores are unbounded. Raises the inference service's errors."""


class LanguageModel(Protocol):
    """Returns the log-probabilities of possible continuations of a conversation."""

    async def weigh(self, model: str, prompt: Sequence[Message], continuations: Sequence[str]) -> list[Continuation]:
        """Return each continuation's log-probability after the prompt. Raises the inference service's errors."""
