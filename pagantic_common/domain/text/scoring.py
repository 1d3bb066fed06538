"""Scores texts for a query by Okapi BM25, and by the fraction of query terms that occur. Terms are caseless words."""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from pagantic_common.domain.text.normalization import normalize_nfkc

K1: Final = 1.5  # saturation: a lower value reduces the weight of repeated terms
B: Final = 0.75  # length normalization: 0 ignores the length of the text

MAX_QUERY_CHARS: Final = 8192
TERM_BYTES: Final = 150  # memory of an indexed term, excluding its postings

_WORD = re.compile(r"\w+")
# Normalizing holds the interpreter lock, so a text is normalized in pieces that end between words if possible.
_PIECE = re.compile(r"(?s).{1,4096}(?=\s|\Z)|.{1,4096}")


def split_terms(text: str) -> list[str]:
    """Split a text into terms: runs of Unicode letters, digits and underscores, normalized (NFKC) and casefolded."""
    return [term for piece in _PIECE.findall(text) for term in _WORD.findall(normalize_nfkc(piece).casefold())]


def query_terms(query: str) -> list[str]:
    """Return the distinct terms of a query's last 8192 characters, in order."""
    return list(dict.fromkeys(split_terms(query[-MAX_QUERY_CHARS:])))


def coverage_of(query: str, texts: Iterable[str]) -> float:
    """Return the fraction of the query's terms that occur in any of the texts, or 0 if the query has no terms."""
    terms = set(query_terms(query))
    if not terms:
        return 0.0
    return len(terms & {term for text in texts for term in split_terms(text)}) / len(terms)


_NOWHERE: Final = array("I")


class TextIndex:
    """An inverted index over texts, built once and searched often. Texts are identified by their position."""

    def __init__(self, texts: Sequence[str]) -> None:
        # for each term: position, count, position, count, ...
        self._postings: dict[str, array[int]] = defaultdict(lambda: array("I"))
        lengths: list[int] = []
        for position, text in enumerate(texts):
            terms = split_terms(text)
            lengths.append(len(terms))
            for term, count in Counter(terms).items():
                self._postings[term].extend((position, count))
        self._size = len(lengths)
        mean = sum(lengths) / self._size if any(lengths) else 1.0
        self._length_factors = [K1 * (1 - B + B * length / mean) for length in lengths]

    @property
    def size_bytes(self) -> int:
        """Estimated memory of the index in bytes."""
        postings = sum(occurrences.itemsize * len(occurrences) for occurrences in self._postings.values())
        return postings + TERM_BYTES * len(self._postings) + 32 * self._size

    def bm25(self, query: str) -> dict[int, float]:
        """Return the score, above 0, of each text that contains a term of the query.

        Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond" (2009), with Lucene's inverse
        document frequency ln(1 + (N - n + 0.5) / (n + 0.5)), which is never negative.
        """
        scores: dict[int, float] = defaultdict(float)
        for term in query_terms(query):
            postings = self._postings.get(term, _NOWHERE)
            positions, counts = postings[::2], postings[1::2]
            rarity = math.log1p((self._size - len(positions) + 0.5) / (len(positions) + 0.5))
            for position, count in zip(positions, counts, strict=True):
                scores[position] += rarity * count * (K1 + 1) / (count + self._length_factors[position])
        return dict(scores)

    def coverage(self, query: str) -> dict[int, float]:
        """Return, for each text with any query term, the fraction of the query's terms in it, which is in (0, 1]."""
        terms = query_terms(query)
        matched = Counter(position for term in terms for position in self._postings.get(term, _NOWHERE)[::2])
        return {position: count / len(terms) for position, count in matched.items()}
