"""Search over unit vectors: exact up to EXACT_ROWS vectors, and approximate beyond.

Exact search multiplies the whole matrix by a vector. Beyond EXACT_ROWS, candidates are chosen by the signs of their
components, one bit each: those with the fewest signs that differ from the query's signs. Only the candidates' cosines
are then computed (binary quantization with rescoring; Charikar, "Similarity Estimation Techniques from Rounding
Algorithms", 2002). Signs need no training, so an index with signs grows as fast as an index without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pagantic_common.domain.text.ranking import Scores, Vectors
from services.context.core.search.lexical_index import Mask

Vector = NDArray[np.float32]
Signs = NDArray[np.uint64]

NO_VECTOR: Final = -2.0  # score of a position without a vector, below every cosine
FIRST_ROWS: Final = 256
WORD_BITS: Final = 64
EXACT_ROWS: Final = 100_000
RESCORED: Final = 4_000  # number of candidates selected by signs
MAX_GATHERED_RATIO: Final = 0.1  # above this share of rows, multiplying the whole matrix is faster than copying rows


class VectorIndex:
    """The vectors of a collection by position. An index is immutable to its readers.

    `extend` writes only to rows that no earlier index reads, so an index shares its matrix with the indexes extended
    from it. Only the newest index may be extended.
    """

    def __init__(self, matrix: Vectors, signs: Signs, has_vector: Mask) -> None:
        self._matrix = matrix
        self._signs = signs
        self._has_vector = has_vector
        self._is_complete = bool(has_vector.all())

    @property
    def size_bytes(self) -> int:
        """The memory of the index in bytes."""
        return self._matrix.nbytes + self._signs.nbytes + self._has_vector.nbytes

    def count_among(self, mask: Mask) -> int:
        """Return the number of positions in a mask that have a vector."""
        return int(np.count_nonzero(self._has_vector & mask))

    def extend(self, size: int, positions: Sequence[int], vectors: Vectors) -> VectorIndex:
        """Return an index of `size` positions with a vector at each of `positions`, which had no vectors before.

        Vectors of another length replace all earlier vectors.
        """
        has_vector = np.zeros(size, dtype=np.bool_)
        has_vector[: len(self._has_vector)] = self._has_vector
        matrix, signs = self._matrix, self._signs
        if len(positions):
            dimensions = vectors.shape[1]
            if len(matrix) < size or matrix.shape[1] != dimensions:
                rows = max(size, 2 * len(matrix), FIRST_ROWS)
                matrix = np.zeros((rows, dimensions), dtype=np.float32)
                signs = np.zeros((-(-dimensions // WORD_BITS), rows), dtype=np.uint64)
                old_size = min(len(self._has_vector), len(self._matrix))  # Later positions have no vectors.
                if self._matrix.shape[1] == dimensions:
                    matrix[:old_size], signs[:, :old_size] = self._matrix[:old_size], self._signs[:, :old_size]
                else:
                    has_vector[:] = False
            matrix[positions] = vectors
            signs[:, positions] = signs_of(vectors)
            has_vector[positions] = True
        return VectorIndex(matrix, signs, has_vector)

    def cosine(self, query: Vector, allowed: Mask | None = None) -> Scores:
        """Return the cosine of each position's vector with the query, or NO_VECTOR.

        `allowed` limits the work to some positions, and any other position may get NO_VECTOR. Among more than
        EXACT_ROWS positions, only the nearest by signs get a cosine.
        """
        size = len(self._has_vector)
        if size == 0 or self._matrix.shape[1] != len(query):
            return np.full(size, NO_VECTOR)
        if allowed is not None and np.count_nonzero(allowed) <= MAX_GATHERED_RATIO * size:
            return self._cosine_of_some(query, np.flatnonzero(allowed & self._has_vector))
        rows = min(size, len(self._matrix))  # Positions without vectors may lie beyond the matrix.
        if rows > EXACT_ROWS:
            return self._cosine_of_some(query, self._nearest_by_signs(query, allowed, rows))
        scores = np.full(size, NO_VECTOR)
        scores[:rows] = self._matrix[:rows] @ query
        if not self._is_complete:
            scores[~self._has_vector] = NO_VECTOR
        return scores

    def vectors_at(self, positions: NDArray[np.intp]) -> Vectors:
        """Return the vectors at the positions. A position without a vector yields zeros."""
        vectors = np.zeros((len(positions), self._matrix.shape[1]), dtype=np.float32)
        has_vector = self._has_vector[positions]
        vectors[has_vector] = self._matrix[positions[has_vector]]
        return vectors

    def _nearest_by_signs(self, query: Vector, allowed: Mask | None, rows: int) -> NDArray[np.intp]:
        differing = np.zeros(rows, dtype=np.uint16)
        for row, word in zip(self._signs, signs_of(query[np.newaxis])[:, 0], strict=True):
            differing += np.bitwise_count(row[:rows] ^ word)
        searched = self._has_vector[:rows]
        if allowed is not None:
            searched = searched & allowed[:rows]
        differing[~searched] = np.iinfo(np.uint16).max
        nearest = np.argpartition(differing, RESCORED)[:RESCORED]
        positions: NDArray[np.intp] = nearest[searched[nearest]]
        return positions

    def _cosine_of_some(self, query: Vector, positions: NDArray[np.intp]) -> Scores:
        scores = np.full(len(self._has_vector), NO_VECTOR)
        scores[positions] = self._matrix[positions] @ query
        return scores


def signs_of(vectors: Vectors) -> Signs:
    """Return the signs of vectors as bits, with WORD_BITS components per row and one column per vector."""
    bits = np.packbits(vectors > 0, axis=1)
    padded = np.zeros((len(vectors), -(-vectors.shape[1] // WORD_BITS) * WORD_BITS // 8), dtype=np.uint8)
    padded[:, : bits.shape[1]] = bits
    return padded.view(np.uint64).T


NO_VECTORS: Final = VectorIndex(
    np.zeros((0, 0), dtype=np.float32), np.zeros((0, 0), dtype=np.uint64), np.zeros(0, dtype=np.bool_)
)
