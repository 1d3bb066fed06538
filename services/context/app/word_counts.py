"""Counts the tokens of words with the tokenizer of the embedding model, which counts each word once."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence

from services.context.core.splitting import countable_words
from services.context.ports import TokenCounter

MAX_KNOWN_WORDS = 200_000  # The limit applies to each model.
WORDS_AT_ONCE = 4000
MAX_MODELS = 8
ESTIMATED_TOKEN_CHARS = 4


class WordCounts:
    """Counts the tokens of words. Without a model, a token is four characters."""

    def __init__(self, counter: TokenCounter) -> None:
        self._counter = counter
        self._known: OrderedDict[str, dict[str, int]] = OrderedDict()

    async def check_model(self, model: str) -> None:
        """Raise the inference service's error for a model that it does not serve."""
        await self._counter.count(model, ["word"])

    async def count(self, model: str, texts: Sequence[str]) -> Mapping[str, int]:
        """Return the token counts of all words in the texts, and possibly of other words."""
        if not model:
            return await asyncio.to_thread(_estimated, texts)
        counts = self._known_of(model)
        missing = await asyncio.to_thread(_missing, texts, counts)
        if len(counts) + len(missing) > MAX_KNOWN_WORDS:
            counts = self._known[model] = {}
            missing = await asyncio.to_thread(_missing, texts, counts)
        for start in range(0, len(missing), WORDS_AT_ONCE):
            some = missing[start : start + WORDS_AT_ONCE]
            counts.update(zip(some, await self._counter.count(model, some), strict=True))
        return counts

    def _known_of(self, model: str) -> dict[str, int]:
        counts = self._known.setdefault(model, {})
        self._known.move_to_end(model)
        if len(self._known) > MAX_MODELS:
            self._known.popitem(last=False)
        return counts


def _estimated(texts: Sequence[str]) -> Mapping[str, int]:
    return {word: -(-len(word) // ESTIMATED_TOKEN_CHARS) for word in countable_words(texts)}


def _missing(texts: Sequence[str], known: Mapping[str, int]) -> list[str]:
    """Return the words of the texts that are not in `known`, which may grow meanwhile."""
    return sorted(word for word in countable_words(texts) if word not in known)
