"""An inverted index of immutable segments that scores texts by BM25 and by query coverage.

Theory of operation. A segment holds the postings of a range of positions: for each of its terms, ordered by term id,
the positions and counts of the term. New texts form a new segment. Segments of similar size are then merged, so an
index of n texts has O(log n) segments, and a text is copied O(log n) times (the log-structured merge of O'Neil et al.,
1996). Removed texts stay in their segments and are masked. A search counts live texts only, so the scores equal those
of an index without the removed texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pagantic_common.domain.text.ranking import Scores
from pagantic_common.domain.text.scoring import K1, B
from services.context.core.search.terms import TermCounts, TermIds

Positions = NDArray[np.int32]
Mask = NDArray[np.bool_]

IMPACT_BYTES: Final = 8  # size of a cached impact
MERGE_RATIO: Final = 2  # A segment is merged into a predecessor that is at most this many times as large.


@dataclass(frozen=True, slots=True)
class Segment:
    """Postings. The positions and counts of term i are at starts[i]:starts[i + 1]."""

    terms: TermIds
    starts: NDArray[np.int64]
    positions: Positions
    counts: NDArray[np.uint16]

    @property
    def size_bytes(self) -> int:
        """The memory of the postings in bytes."""
        return self.terms.nbytes + self.starts.nbytes + self.positions.nbytes + self.counts.nbytes

    def find(self, term_ids: TermIds) -> Iterator[tuple[int, Positions, NDArray[np.uint16]]]:
        """Yield the index in `term_ids`, the positions and the counts of each term that the segment contains."""
        if not len(self.terms):
            return
        places = np.minimum(np.searchsorted(self.terms, term_ids), len(self.terms) - 1)
        for index in np.flatnonzero(self.terms[places] == term_ids):
            start, end = self.starts[places[index]], self.starts[places[index] + 1]
            yield int(index), self.positions[start:end], self.counts[start:end]


def make_segment(texts: Sequence[TermCounts], first_position: int) -> Segment:
    """Return the segment for texts at consecutive positions."""
    sizes = [len(text.ids) for text in texts]
    positions = np.repeat(np.arange(first_position, first_position + len(texts), dtype=np.int32), sizes)
    terms = np.concatenate([np.empty(0, dtype=np.uint64), *(text.ids for text in texts)])
    counts = np.concatenate([np.empty(0, dtype=np.uint16), *(text.counts for text in texts)])
    return _sorted_segment(terms, positions, counts)


def merge_segments(segments: Sequence[Segment]) -> Segment:
    """Merge segments into one segment. Positions must ascend from segment to segment."""
    terms = np.concatenate([np.repeat(segment.terms, np.diff(segment.starts)) for segment in segments])
    positions = np.concatenate([segment.positions for segment in segments])
    counts = np.concatenate([segment.counts for segment in segments])
    return _sorted_segment(terms, positions, counts)


def _sorted_segment(terms: TermIds, positions: Positions, counts: NDArray[np.uint16]) -> Segment:
    order = np.argsort(terms, kind="stable")  # A stable sort keeps positions ascending within a term.
    terms = terms[order]
    is_first = np.ones(len(terms), dtype=np.bool_)
    is_first[1:] = terms[1:] != terms[:-1]
    starts = np.append(np.flatnonzero(is_first), len(terms))
    return Segment(terms[is_first], starts, positions[order], counts[order])


class LexicalIndex:
    """The segments of a collection, and the lengths of its texts. It is immutable, and `extend` shares its segments."""

    def __init__(self, segments: tuple[Segment, ...], lengths: NDArray[np.float64], alive: Mask) -> None:
        self._segments = segments
        self._lengths = lengths
        self._alive = alive
        self._has_removed = not bool(alive.all())
        self._live_count = int(np.count_nonzero(alive))
        total = float(lengths[alive].sum())
        mean = total / self._live_count if total else 1.0
        self._length_factors = K1 * (1 - B + B * lengths / mean)
        self._impacts: dict[tuple[int, int], Scores] = {}

    @property
    def size_bytes(self) -> int:
        """The memory of the index in bytes, including the maximum size of its cache of impacts."""
        cached = sum(IMPACT_BYTES * len(segment.positions) for segment in self._segments)
        return cached + sum(segment.size_bytes for segment in self._segments) + 17 * len(self._lengths)

    @property
    def segment_count(self) -> int:
        """The number of segments."""
        return len(self._segments)

    def extend(self, texts: Sequence[TermCounts], alive: Mask) -> LexicalIndex:
        """Return an index with texts appended after the last position. `alive` is the mask of all positions."""
        segments = list(self._segments)
        lengths = self._lengths
        if texts:
            segments.append(make_segment(texts, len(lengths)))
            lengths = np.append(lengths, [float(text.length) for text in texts])
        return LexicalIndex(_compact(segments), lengths, alive)

    def bm25(self, term_ids: TermIds) -> Scores:
        """Return the BM25 score of each position; 0 for removed texts and for texts without a query term.

        Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond" (2009), with the inverse
        document frequency ln(1 + (N - n + 0.5) / (n + 0.5)) that Lucene uses, which is never negative.
        """
        matches = [list(segment.find(term_ids)) for segment in self._segments]
        rarity = self._rarity_of(len(term_ids), matches)
        places: list[Positions] = []
        impacts: list[Scores] = []
        for number, postings in enumerate(matches):
            for index, positions, counts in postings:
                places.append(positions)
                key = (number, int(term_ids[index]))
                scores = self._impacts.get(key)
                if scores is None:
                    scores = self._impacts[key] = self._impacts_of(positions, counts, rarity[index])
                impacts.append(scores)
        return self._summed(places, impacts)

    def coverage(self, term_ids: TermIds) -> Scores:
        """Return for each position the fraction of the query's terms that the text contains."""
        places = [positions for segment in self._segments for _, positions, _ in segment.find(term_ids)]
        matched = self._summed(places, [np.ones(len(positions)) for positions in places])
        return matched / max(1, len(term_ids))

    def _summed(self, places: Sequence[Positions], impacts: Sequence[Scores]) -> Scores:
        """Return the sum of the impacts at each position. The sum is 0 for removed texts."""
        if not places:
            return np.zeros(len(self._lengths))
        weights = np.concatenate(impacts)
        scores = np.bincount(np.concatenate(places), weights, len(self._lengths)).astype(np.float64, copy=False)
        if self._has_removed:
            scores[~self._alive] = 0.0
        return scores

    def _rarity_of(
        self, term_count: int, found: Sequence[Sequence[tuple[int, Positions, NDArray[np.uint16]]]]
    ) -> Scores:
        frequencies = np.zeros(term_count)
        for postings in found:
            for index, positions, _ in postings:
                if self._has_removed:
                    frequencies[index] += np.count_nonzero(self._alive[positions])
                else:
                    frequencies[index] += len(positions)
        return np.log1p((self._live_count - frequencies + 0.5) / (frequencies + 0.5))

    def _impacts_of(self, positions: Positions, counts: NDArray[np.uint16], rarity: float) -> Scores:
        frequency = counts.astype(np.float64)
        return rarity * (K1 + 1) * frequency / (frequency + self._length_factors[positions])


EMPTY: Final = LexicalIndex((), np.empty(0), np.empty(0, dtype=np.bool_))


def _compact(segments: list[Segment]) -> tuple[Segment, ...]:
    """Merge the last segments while they are similar in size."""
    size = [len(segment.positions) for segment in segments]
    keep = len(segments)
    merged = 0
    while keep and (merged == 0 or size[keep - 1] <= MERGE_RATIO * merged):
        keep -= 1
        merged += size[keep]
    if len(segments) - keep <= 1:
        return tuple(segments)
    return (*segments[:keep], merge_segments(segments[keep:]))
