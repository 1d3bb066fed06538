"""Fills llama.cpp's batches through preallocated arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import llama_cpp
import numpy as np

from services.inference.core.scheduling.batch import Slice


class TokenBatch:
    """A llama_batch over preallocated arrays, which is filled without a call per token.

    With `dimensions`, the batch holds image embeddings instead of tokens. `fill` skips slices of the other kind.
    """

    def __init__(self, capacity: int, dimensions: int = 0) -> None:
        self._tokens = np.zeros(capacity, dtype=np.int32)
        self._embeddings = np.zeros((capacity, dimensions), dtype=np.float32)
        self._has_embeddings = dimensions > 0
        self._positions = np.zeros(capacity, dtype=np.int32)
        self._counts = np.ones(capacity, dtype=np.int32)
        self._sequences = np.zeros(capacity, dtype=np.int32)
        self._wanted = np.zeros(capacity, dtype=np.int8)
        int32_p = ctypes.POINTER(ctypes.c_int32)
        base = self._sequences.ctypes.data
        self._sequence_rows = (int32_p * capacity)(
            *(ctypes.cast(base + index * self._sequences.itemsize, int32_p) for index in range(capacity))
        )
        self.batch = llama_cpp.llama_batch(
            n_tokens=0,
            token=None if dimensions else self._tokens.ctypes.data_as(int32_p),
            embd=self._embeddings.ctypes.data_as(ctypes.POINTER(ctypes.c_float)) if dimensions else None,
            pos=self._positions.ctypes.data_as(int32_p),
            n_seq_id=self._counts.ctypes.data_as(int32_p),
            seq_id=self._sequence_rows,
            logits=self._wanted.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )

    def fill(self, slices: Sequence[Slice]) -> int:
        """Write the slices into the batch and return the number of requested rows of logits."""
        start = rows = 0
        for part in slices:
            if (part.embeddings is not None) != self._has_embeddings:
                continue
            end = start + len(part.tokens)
            if part.embeddings is None:
                self._tokens[start:end] = part.tokens
            else:
                self._embeddings[start:end] = part.embeddings
            self._positions[start:end] = range(part.position, part.position + len(part.tokens))
            self._sequences[start:end] = part.sequence_id
            self._wanted[start:end] = 0
            self._wanted[end - part.logit_rows : end] = 1
            rows += part.logit_rows
            start = end
        self.batch.n_tokens = start
        return rows
