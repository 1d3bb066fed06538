"""How well texts fit a query: Okapi BM25 and the fraction of query terms found. Terms are caseless words."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

K1: Final = 1.5  # how soon further occurrences of a term stop counting
B: Final = 0.75  # how much longer texts are held back

_WORD = re.compile(r"\w+")


def split_terms(text: str) -> list[str]:
    """Split into terms: runs of Unicode letters, digits and underscores, normalized (NFKC) and casefolded."""
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def query_terms(query: str) -> list[str]:
    """Return the distinct terms of a query, in their order."""
    return list(dict.fromkeys(split_terms(query)))


def coverage_of(query: str, texts: Iterable[str]) -> float:
    """Return the fraction of the query's terms that occur in any of the texts; 0 when the query has none."""
    terms = set(query_terms(query))
    if not terms:
        return 0.0
    return len(terms & {term for text in texts for term in split_terms(text)}) / len(terms)


class TextIndex:
    """An inverted index over texts; built once, searched often. Texts are named by their position."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._postings: dict[str, list[tuple[int, int]]] = defaultdict(list)
        lengths: list[int] = []
        for position, text in enumerate(texts):
            terms = split_terms(text)
            lengths.append(len(terms))
            for term, count in Counter(terms).items():
                self._postings[term].append((position, count))
        self._size = len(lengths)
        mean = sum(lengths) / self._size if any(lengths) else 1.0
        self._length_factors = [K1 * (1 - B + B * length / mean) for length in lengths]

    def bm25(self, query: str) -> dict[int, float]:
        """Return the score, above 0, of each text that has a term of the query.

        Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond" (2009), with the inverse
        document frequency ln(1 + (N - n + 0.5) / (n + 0.5)) that Lucene uses, which is never negative.
        """
        scores: dict[int, float] = defaultdict(float)
        for term in query_terms(query):
            postings = self._postings.get(term, [])
            rarity = math.log1p((self._size - len(postings) + 0.5) / (len(postings) + 0.5))
            for position, count in postings:
                scores[position] += rarity * count * (K1 + 1) / (count + self._length_factors[position])
        return dict(scores)

    def coverage(self, query: str) -> dict[int, float]:
        """Return the fraction of the query's terms, in (0, 1], that each text has; texts with none are left out."""
        terms = query_terms(query)
        matched = Counter(position for term in terms for position, _ in self._postings.get(term, []))
        return {position: count / len(terms) for position, count in matched.items()}
