"""A text engine that says what it is told: one token per byte, logits that make the script's next byte certain."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from pagantic_common.domain.messages import ModelInfo

END_TOKEN = 256
VOCABULARY_SIZE = 257
CERTAIN = 50.0


class ByteVocabulary:
    """Tokens 0 to 255 are bytes, 256 ends the output."""

    end_tokens = frozenset({END_TOKEN})
    control_texts: tuple[str, ...] = ("<end>",)

    def piece(self, token: int) -> bytes:
        """Bytes of a token."""
        return b"" if token == END_TOKEN else bytes([token])


class ScriptedEngine:
    """After a prompt that ends in a byte, says `script` and ends; a call of `on_decode` sees every batch.

    Its sequence is kept like the real one's, so that a wrong position is an error here too.
    """

    def __init__(
        self,
        script: str = "hello",
        *,
        context_window: int = 512,
        on_decode: Callable[[Sequence[int]], None] | None = None,
    ) -> None:
        self.model = ModelInfo(name="scripted", context_window=context_window, capabilities=("chat",))
        self.vocabulary = ByteVocabulary()
        self.max_batch_tokens = 64
        self.batches: list[tuple[int, ...]] = []
        self._script: list[int] = [*script.encode(), END_TOKEN]
        self._tokens: list[int] = []
        self._on_decode = on_decode

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:  # noqa: ARG002 - no specials
        """Return the bytes of the text."""
        return list(text.encode())

    def detokenize(self, tokens: Sequence[int], *, with_special: bool) -> bytes:  # noqa: ARG002 - no specials
        """Return the bytes of tokens."""
        return b"".join(self.vocabulary.piece(token) for token in tokens if 0 <= token < VOCABULARY_SIZE)

    def decode(self, tokens: Sequence[int], position: int) -> NDArray[np.float32]:
        """Append tokens and return logits whose best token is the script's next."""
        if position != len(self._tokens):
            raise AssertionError(f"decode at {position}, but the sequence has {len(self._tokens)} tokens")
        if not 0 < len(tokens) <= self.max_batch_tokens:
            raise AssertionError(f"a batch of {len(tokens)} tokens")
        if self._on_decode is not None:
            self._on_decode(tokens)
        self.batches.append(tuple(tokens))
        self._tokens.extend(tokens)
        logits = np.zeros(VOCABULARY_SIZE, dtype=np.float32)
        logits[self._next_token()] = CERTAIN
        return logits

    def truncate(self, length: int) -> None:
        """Forget everything from position `length` on."""
        del self._tokens[length:]

    def _next_token(self) -> int:
        said = 0
        for size in range(min(len(self._script), len(self._tokens)), -1, -1):
            if self._tokens[len(self._tokens) - size :] == self._script[:size]:
                said = size
                break
        return self._script[min(said, len(self._script) - 1)]
