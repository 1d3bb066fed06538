"""Chooses the texts of each batch, and scales vectors to unit length.

Texts of all requests share batches. A batch begins with the request that has the fewest computed tokens so far, so that
short requests need not wait for long requests. Every second batch begins with a text of the oldest request, so that
new requests cannot starve that request. The rest of the batch is filled with texts that fit, longest first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pagantic_common.domain.errors import ErrorCode, Internal
from pagantic_common.models.kinds import EMBED

MAX_TEXTS = 256
CAPABILITY = EMBED

Vectors = NDArray[np.float32]  # one row per text


@dataclass(frozen=True, slots=True)
class Text:
    """A text of a request, as tokens."""

    request: int
    index: int
    tokens: Sequence[int]


class _Pending:
    def __init__(self, number: int, texts: list[Text]) -> None:
        self.number = number
        self.texts = sorted(texts, key=lambda text: -len(text.tokens))
        self.taken_tokens = 0


class TextQueue:
    """The pending texts of all requests.

    Args:
        max_tokens: The maximum number of tokens in a batch. A longer text gets a separate batch.
        max_texts: The maximum number of texts in a batch.
    """

    def __init__(self, *, max_tokens: int, max_texts: int) -> None:
        self._max_tokens = max_tokens
        self._max_texts = max_texts
        self._requests: dict[int, _Pending] = {}
        self._last_number = 0
        self._is_oldest_first = False

    def __len__(self) -> int:
        """Return the number of pending texts."""
        return sum(len(request.texts) for request in self._requests.values())

    @property
    def waiting(self) -> int:
        """The number of requests without a computed text; readable from any thread."""
        return sum(request.taken_tokens == 0 for request in list(self._requests.values()))

    def add(self, texts: Sequence[Sequence[int]]) -> int:
        """Add a request and return its number. Each of its texts has at least one token."""
        self._last_number += 1
        number = self._last_number
        self._requests[number] = _Pending(number, [Text(number, index, tokens) for index, tokens in enumerate(texts)])
        return number

    def remove(self, number: int) -> None:
        """Remove the remaining texts of a request."""
        self._requests.pop(number, None)

    def take(self) -> list[Text]:
        """Remove and return the next batch, or an empty list if there are no texts."""
        batch: list[Text] = []
        if self._is_oldest_first and self._requests:
            batch.append(self._take_first(min(self._requests.values(), key=lambda request: request.number)))
        self._is_oldest_first = not self._is_oldest_first
        for request in sorted(self._requests.values(), key=lambda request: (request.taken_tokens, request.number)):
            if not batch:
                batch.append(self._take_first(request))
            self._take_fitting(request, batch)
        self._requests = {number: request for number, request in self._requests.items() if request.texts}
        return batch

    def _take_fitting(self, request: _Pending, batch: list[Text]) -> None:
        """Move the request's texts that fit into the batch."""
        room = self._max_tokens - sum(len(text.tokens) for text in batch)
        remaining_texts = []
        for text in request.texts:
            if len(text.tokens) <= room and len(batch) < self._max_texts:
                batch.append(text)
                room -= len(text.tokens)
                request.taken_tokens += len(text.tokens)
            else:
                remaining_texts.append(text)
        request.texts = remaining_texts

    @staticmethod
    def _take_first(request: _Pending) -> Text:
        text = request.texts.pop(0)
        request.taken_tokens += len(text.tokens)
        return text


def unit_vectors(vectors: Vectors) -> Vectors:
    """Scale rows to length 1. Raises Internal (INFERENCE_ENGINE_ERROR) if a row is zero or infinite."""
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    if not (np.isfinite(lengths).all() and lengths.all()):
        raise Internal("the model gave a vector without direction", code=ErrorCode.INFERENCE_ENGINE_ERROR)
    units: Vectors = (vectors / lengths).astype(np.float32)
    return units
