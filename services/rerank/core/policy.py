"""Defines rerank policies, which name the scorers and the rules for selecting chunks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from pagantic_common.domain.chunks import check_min_score
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.text.ranking import Fusion

MAX_SCORERS: Final = 8
MAX_WEIGHT: Final = 1000.0


@dataclass(frozen=True, slots=True)
class WeightedScorer:
    """A scorer by name, with its weight in a fused score and its model.

    An empty `model` selects the configured model.
    """

    name: str
    weight: float = 1.0
    model: str = ""

    @property
    def label(self) -> str:
        """The key of the scorer's scores in a chunk's metadata."""
        if self.model:
            return f"{self.name}:{self.model}"
        return self.name


@dataclass(frozen=True, slots=True)
class RerankPolicy:
    """The scorers, and the rules for the chunks to keep.

    Without scorers, the service's default scorers apply. A limit of 0 means no limit. `fusion` is None if this version
    does not know the requested fusion.
    """

    scorers: tuple[WeightedScorer, ...] = ()
    min_score: float | None = None
    top_k: int = 0
    fusion: Fusion | None = Fusion.WEIGHTED
    diversity: float = 0.0
    max_per_source: int = 0

    @property
    def is_fused(self) -> bool:
        """Whether the scores of several scorers are fused."""
        return len(self.scorers) > 1

    @property
    def score_kind(self) -> str:
        """The score_kind that the reranked chunks get."""
        if self.is_fused and self.fusion is not None:
            return self.fusion.value
        return self.scorers[0].name

    def check(self) -> None:
        """Raise InvalidRequest, naming the field, if a value is out of its range."""
        check_min_score("min_score", self.min_score)
        for field, value in (("top_k", self.top_k), ("max_per_source", self.max_per_source)):
            if value < 0:
                raise InvalidRequest(f"{field} is {value}: it must not be negative")
        if self.fusion is None:
            choices = ", ".join(f"SCORE_FUSION_{fusion.name}" for fusion in Fusion)
            raise InvalidRequest(f"fusion is not known: use one of {choices}")
        if math.isnan(self.diversity) or not 0 <= self.diversity <= 1:
            raise InvalidRequest(f"diversity is {self.diversity}: it must be in [0, 1]")
        self._check_scorers()

    def _check_scorers(self) -> None:
        if len(self.scorers) > MAX_SCORERS:
            raise InvalidRequest(f"scorers has {len(self.scorers)} entries, at most {MAX_SCORERS} are allowed")
        labels = [scorer.label for scorer in self.scorers]
        for position, scorer in enumerate(self.scorers):
            if math.isnan(scorer.weight) or not 0 < scorer.weight <= MAX_WEIGHT:
                raise InvalidRequest(
                    f"scorers[{position}].weight is {scorer.weight}: it must be above 0 and at most {MAX_WEIGHT:g}"
                )
            if labels.count(scorer.label) > 1:
                raise InvalidRequest(f"scorers has {scorer.label!r} more than once: give it one weight")
