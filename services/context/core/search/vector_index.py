"""Exact search over vectors of unit length, by one product of matrix and vector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pagantic_common.domain.text.ranking import Scores, Vectors
from services.context.core.search.lexical_index import Mask

Vector = NDArray[np.float32]

NO_VECTOR: Final = -2.0  # the score of a position without a vector: below every cosine
FIRST_ROWS: Final = 256
MAX_GATHERED_RATIO: Final = 0.1  # above this share of all rows, the product of all is faster than a copy of some


class VectorIndex:
    """The vectors of one collection by position. Immutable to its readers.

    `extend` writes to rows that no earlier index shows, so indexes of one line of descent share a matrix; only the
    newest may be extended.
    """

    def __init__(self, matrix: Vectors, has_vector: Mask) -> None:
        self._matrix = matrix
        self._has_vector = has_vector
        self._is_complete = bool(has_vector.all())

    @property
    def size_bytes(self) -> int:
        """Memory of the index."""
        return self._matrix.nbytes + self._has_vector.nbytes

    def count_among(self, mask: Mask) -> int:
        """Return the number of positions of a mask that have a vector."""
        return int(np.count_nonzero(self._has_vector & mask))

    def extend(self, size: int, positions: Sequence[int], vectors: Vectors) -> VectorIndex:
        """Return an index of `size` positions, with a vector at each of `positions`, which had none before."""
        has_vector = np.zeros(size, dtype=np.bool_)
        has_vector[: len(self._has_vector)] = self._has_vector
        matrix = self._matrix
        if len(positions):
            dimensions = vectors.shape[1]
            if len(matrix) < size or matrix.shape[1] != dimensions:
                matrix = np.zeros((max(size, 2 * len(matrix), FIRST_ROWS), dimensions), dtype=np.float32)
                known = len(self._has_vector)
                if self._matrix.shape[1] == dimensions:
                    matrix[:known] = self._matrix[:known]
            matrix[positions] = vectors
            has_vector[positions] = True
        return VectorIndex(matrix, has_vector)

    def cosine(self, query: Vector, allowed: Mask | None = None) -> Scores:
        """Return the cosine of each position with the query, or NO_VECTOR.

        `allowed` limits the work to some positions; the others may have NO_VECTOR.
        """
        size = len(self._has_vector)
        if size == 0 or self._matrix.shape[1] != len(query):
            return np.full(size, NO_VECTOR)
        if allowed is not None and np.count_nonzero(allowed) <= MAX_GATHERED_RATIO * size:
            return self._cosine_of_some(query, np.flatnonzero(allowed & self._has_vector))
        rows = min(size, len(self._matrix))  # positions that came without vectors may be beyond the matrix
        scores = np.full(size, NO_VECTOR)
        scores[:rows] = self._matrix[:rows] @ query
        if not self._is_complete:
            scores[~self._has_vector] = NO_VECTOR
        return scores

    def vectors_at(self, positions: NDArray[np.intp]) -> Vectors:
        """Return the vectors at positions, zeros where there is none."""
        found = np.zeros((len(positions), max(1, self._matrix.shape[1])), dtype=np.float32)
        known = self._has_vector[positions]
        found[known] = self._matrix[positions[known]]
        return found

    def _cosine_of_some(self, query: Vector, positions: NDArray[np.intp]) -> Scores:
        scores = np.full(len(self._has_vector), NO_VECTOR)
        scores[positions] = self._matrix[positions] @ query
        return scores


NO_VECTORS: Final = VectorIndex(np.zeros((0, 0), dtype=np.float32), np.zeros(0, dtype=np.bool_))
