"""The use-case behind ScorePairs: a cross-encoder reads the query with each text."""

from __future__ import annotations

from collections.abc import Sequence

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.usage import TokenUsage
from services.inference.app.pooling.embedder_loop import EmbedderLoop
from services.inference.app.pooling.pooled_work import PooledWork
from services.inference.core.pairs import PairLayout, pair_scores


class PairScoring(PooledWork):
    """ScorePairs over one model, which it owns; a Workload."""

    def __init__(self, loop: EmbedderLoop, layout: PairLayout) -> None:
        super().__init__(loop)
        self._layout = layout

    async def score_pairs(self, query: str, texts: Sequence[str]) -> tuple[list[float], TokenUsage]:
        """Return the score of each text with the query, in order, and the usage.

        Raises InvalidRequest for no text or more than 256, for an empty query, and (INFERENCE_CONTEXT_EXCEEDED) for a
        query of more than half of the window; Overloaded (INFERENCE_OVERLOADED) when too many requests wait.
        """
        self._check(texts)
        if not query.strip():
            raise InvalidRequest("query is empty")
        self.preparation.check_text("query", query)
        rows, usage = await self._pool(lambda: self._join(query, texts))
        return pair_scores(rows), usage

    def _join(self, query: str, texts: Sequence[str]) -> list[list[int]]:
        layout, window = self._layout, self.embedder.model.context_window
        query_tokens = self._tokens(layout.query_lead + query)
        layout.check_query(query_tokens, window)
        beginnings = (self._beginning(layout.text_lead + text) for text in texts)
        return [layout.join(query_tokens, self._tokens(text), window) for text in beginnings]

    def _beginning(self, text: str) -> str:
        """Return so much of a text as the window can hold at most, which bounds the time of its tokenization."""
        return text[: self.embedder.model.context_window * self.embedder.longest_token_bytes]

    def _tokens(self, text: str) -> list[int]:
        return self.embedder.tokenize(text, add_special=False, parse_special=False)
