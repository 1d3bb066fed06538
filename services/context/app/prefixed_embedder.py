"""Puts before each text what the embedding model wants there."""

from __future__ import annotations

from collections.abc import Sequence

from pagantic_common.domain.text.fitting import TextEmbedder
from pagantic_common.domain.text.ranking import Vectors


class PrefixedEmbedder:
    """Embeds texts with a prefix; a TextEmbedder, so that a text that is cut keeps its prefix."""

    def __init__(self, embedder: TextEmbedder, prefix: str) -> None:
        self._embedder = embedder
        self._prefix = prefix

    async def embed(self, model: str, texts: Sequence[str]) -> Vectors:
        """Return a row for each text."""
        return await self._embedder.embed(model, [self._prefix + text for text in texts])
