"""A text embedder that averages one vector per byte, so that texts with the same bytes have similar vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from pagantic_common.domain.messages import ModelInfo

DIMENSIONS = 8
BEGIN_TOKEN = 256
END_TOKEN = 257
VOCABULARY_SIZE = 258

Vectors = NDArray[np.float32]


class ScriptedEmbedder:
    """Makes one token per byte, between two special tokens. Rejects a batch that a real embedder could not compute.

    Args:
        has_special: Whether texts get the special tokens.
        longest_token_bytes: The declared length of the longest token; the real length is 1.
        on_embed: Called with the texts of every batch before it is computed. An error that it raises is propagated.
    """

    def __init__(
        self,
        *,
        context_window: int = 64,
        max_batch_tokens: int = 32,
        max_batch_texts: int = 8,
        has_special: bool = True,
        longest_token_bytes: int = 32,
        on_embed: Callable[[Sequence[Sequence[int]]], None] | None = None,
    ) -> None:
        self.model = ModelInfo(name="scripted", context_window=context_window, capabilities=("embed",))
        self.max_batch_tokens = max_batch_tokens
        self.max_batch_texts = max_batch_texts
        self.longest_token_bytes = longest_token_bytes
        self.batches: list[tuple[tuple[int, ...], ...]] = []
        self._has_special = has_special
        self._on_embed = on_embed
        table = np.random.default_rng(1).normal(size=(VOCABULARY_SIZE, DIMENSIONS))
        self._table: Vectors = table.astype(np.float32)

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:  # noqa: ARG002 - none spelt
        """Return the bytes of the text, between the special tokens if requested."""
        tokens = list(text.encode())
        if add_special and self._has_special:
            return [BEGIN_TOKEN, *tokens, END_TOKEN]
        return tokens

    def detokenize(self, tokens: Sequence[int], *, with_special: bool) -> bytes:  # noqa: ARG002 - they have no text
        """Return the bytes of the tokens."""
        return bytes(token for token in tokens if 0 <= token < BEGIN_TOKEN)

    def embed(self, texts: Sequence[Sequence[int]]) -> Vectors:
        """Return a vector for each text, in order."""
        if self._on_embed is not None:
            self._on_embed(texts)
        sizes = [len(tokens) for tokens in texts]
        limit = self.max_batch_tokens
        if len(texts) == 1:
            limit = self.model.context_window
        if not (0 < len(texts) <= self.max_batch_texts and all(sizes) and sum(sizes) <= limit):
            raise AssertionError(f"a batch of {len(texts)} texts with {sizes} tokens")
        self.batches.append(tuple(tuple(tokens) for tokens in texts))
        return np.stack([self._table[list(tokens)].mean(axis=0) for tokens in texts])

    def close(self) -> None:
        """Do nothing, because there are no resources to free."""
