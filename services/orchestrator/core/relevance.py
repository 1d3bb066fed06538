"""The relevance of texts to a query, based on the scores of a cross-encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pagantic_common.domain.text.calibration import probability_of
from pagantic_common.domain.usage import TokenUsage


@dataclass(frozen=True, slots=True)
class RelevantText:
    """The position of a text in the request, and the probability that the text is relevant."""

    index: int
    relevance: float


@dataclass(frozen=True, slots=True)
class Reranked:
    """Texts in descending order of relevance, and the usage of all scored texts."""

    results: tuple[RelevantText, ...]
    usage: TokenUsage = TokenUsage()


def best_first(scores: Sequence[float]) -> tuple[RelevantText, ...]:
    """Return the scored texts in descending order of relevance. Texts with equal scores keep their order.

    Sorts by score rather than by probability, because very high scores all round to the same probability.
    """
    positions = sorted(range(len(scores)), key=lambda position: -scores[position])
    return tuple(RelevantText(position, probability_of(scores[position])) for position in positions)
