"""The relevance of texts to a query, by the scores that a cross-encoder gave them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pagantic_common.domain.text.calibration import probability_of
from pagantic_common.domain.usage import TokenUsage


@dataclass(frozen=True, slots=True)
class RelevantText:
    """A text by its position in the request, and the probability that it is relevant."""

    index: int
    relevance: float


@dataclass(frozen=True, slots=True)
class Reranked:
    """Texts, the most relevant first, and the usage of all texts that were scored."""

    results: tuple[RelevantText, ...]
    usage: TokenUsage = TokenUsage()


def best_first(scores: Sequence[float]) -> tuple[RelevantText, ...]:
    """Return the texts of these scores, most relevant first; equal scores keep their order.

    The order uses the scores, because the probabilities of very high scores are equal.
    """
    positions = sorted(range(len(scores)), key=lambda position: -scores[position])
    return tuple(RelevantText(position, probability_of(scores[position])) for position in positions)
