"""The scorer by a cross-encoder, a model that reads query and chunk together."""

from __future__ import annotations

from collections.abc import Sequence

from pagantic_common.domain.chunks import Chunk
from pagantic_common.domain.text.calibration import probability_of
from pagantic_common.domain.text.fitting import ends, first_fitting
from services.rerank.ports import PairScorer, ScorerInfo

TEXTS_OF_A_CALL = 32  # a cross-encoder takes as long for a text as an embedding model for many texts


class CrossEncoderScorer:
    """Scores by the probability that a cross-encoder gives to a chunk; a Scorer.

    If a chunk is too long for the model, only its beginning is read; if a query is too long, only its end.

    Args:
        pair_scorer: Calls the models.
        model: Alias of the cross-encoder for requests without a model.
    """

    info = ScorerInfo("cross_encoder", "probability that the chunk is relevant, by a cross-encoder", 0.0, 1.0)

    def __init__(self, pair_scorer: PairScorer, model: str) -> None:
        self._pair_scorer = pair_scorer
        self._model = model

    async def score(self, query: str, chunks: Sequence[Chunk], model: str) -> list[float | None]:
        """Return the probability of each chunk, None for a blank chunk."""
        positions = [position for position, chunk in enumerate(chunks) if chunk.content.strip()]
        scores: list[float | None] = [None] * len(chunks)
        for start in range(0, len(positions), TEXTS_OF_A_CALL):
            scored = positions[start : start + TEXTS_OF_A_CALL]
            found = await self._score_some(model, query, [chunks[position].content for position in scored])
            for position, score in zip(scored, found, strict=True):
                scores[position] = probability_of(score)
        return scores

    async def _score_some(self, model: str, query: str, texts: Sequence[str]) -> list[float]:
        alias = model or self._model
        return await first_fitting(ends(query), lambda end: self._pair_scorer.score_pairs(alias, end, texts))
