"""Which texts are computed together, and the length of their vectors.

Texts of all requests share batches. A batch begins with the request that has had the fewest tokens so far, so that a
short request need not wait for a long one; every second batch begins with one text of the oldest request, so that new
ones cannot starve it. What room is left is filled with whatever fits, longest first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pagantic_common.domain.errors import ErrorCode, Internal

MAX_TEXTS = 256
CAPABILITY = "embed"

Vectors = NDArray[np.float32]  # one row per text


@dataclass(frozen=True, slots=True)
class Text:
    """One text of a request, as tokens."""

    request: int
    index: int
    tokens: Sequence[int]


class _Pending:
    def __init__(self, number: int, texts: list[Text]) -> None:
        self.number = number
        self.texts = sorted(texts, key=lambda text: -len(text.tokens))
        self.taken_tokens = 0


class TextQueue:
    """The texts that are still to be computed.

    Args:
        max_tokens: Most tokens of a batch; a longer text goes alone.
        max_texts: Most texts of a batch.
    """

    def __init__(self, *, max_tokens: int, max_texts: int) -> None:
        self._max_tokens = max_tokens
        self._max_texts = max_texts
        self._requests: dict[int, _Pending] = {}
        self._last_number = 0
        self._is_oldest_first = False

    def __len__(self) -> int:
        """Return the number of texts."""
        return sum(len(request.texts) for request in self._requests.values())

    @property
    def waiting(self) -> int:
        """Requests of which nothing has been taken yet; may be read from any thread."""
        return sum(request.taken_tokens == 0 for request in list(self._requests.values()))

    def add(self, texts: Sequence[Sequence[int]]) -> int:
        """Add a request of texts, each of at least one token, and return its number."""
        self._last_number += 1
        number = self._last_number
        self._requests[number] = _Pending(number, [Text(number, index, tokens) for index, tokens in enumerate(texts)])
        return number

    def remove(self, number: int) -> None:
        """Forget what is left of a request."""
        self._requests.pop(number, None)

    def take(self) -> list[Text]:
        """Take the next batch out; empty when there is nothing to do."""
        batch: list[Text] = []
        if self._is_oldest_first and self._requests:
            batch.append(self._take_first(min(self._requests.values(), key=lambda request: request.number)))
        self._is_oldest_first = not self._is_oldest_first
        room = self._max_tokens - sum(len(text.tokens) for text in batch)
        for request in sorted(self._requests.values(), key=lambda request: (request.taken_tokens, request.number)):
            if not batch:
                batch.append(self._take_first(request))
                room -= len(batch[0].tokens)
            left = []
            for text in request.texts:
                if len(text.tokens) <= room and len(batch) < self._max_texts:
                    batch.append(text)
                    room -= len(text.tokens)
                    request.taken_tokens += len(text.tokens)
                else:
                    left.append(text)
            request.texts = left
        self._requests = {number: request for number, request in self._requests.items() if request.texts}
        return batch

    @staticmethod
    def _take_first(request: _Pending) -> Text:
        text = request.texts.pop(0)
        request.taken_tokens += len(text.tokens)
        return text


def unit_vectors(vectors: Vectors) -> Vectors:
    """Return the rows at length 1; raises Internal (INFERENCE_ENGINE_ERROR) for one that has no direction."""
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    if not (np.isfinite(lengths).all() and lengths.all()):
        raise Internal("the model gave a vector without direction", code=ErrorCode.INFERENCE_ENGINE_ERROR)
    units: Vectors = (vectors / lengths).astype(np.float32)
    return units
