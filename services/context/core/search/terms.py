"""Counts and encodes the terms of texts: caseless words, stemmed in the language of the collection."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import Stemmer
from numpy.typing import NDArray

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.text.scoring import MAX_QUERY_CHARS, split_terms

NO_LANGUAGE: Final = "none"  # no stemming
LANGUAGES: Final = (NO_LANGUAGE, *sorted(Stemmer.algorithms()))
MAX_COUNT: Final = 2**16 - 1

TermIds = NDArray[np.uint64]
Counts = NDArray[np.uint16]
_ENTRY: Final = np.dtype([("term", "<u8"), ("count", "<u2")])
TERM_BYTES: Final = _ENTRY.itemsize  # size of an encoded term


@dataclass(frozen=True, slots=True)
class TermCounts:
    """The ids of the distinct terms of a text in ascending order, and the number of occurrences of each."""

    ids: TermIds
    counts: Counts

    @property
    def length(self) -> int:
        """The number of terms, including repetitions."""
        return int(self.counts.sum(dtype=np.int64))

    def to_bytes(self) -> bytes:
        """Encode the terms as little-endian pairs of an id (8 bytes) and a count (2 bytes)."""
        entries = np.empty(len(self.ids), dtype=_ENTRY)
        entries["term"], entries["count"] = self.ids, self.counts
        return entries.tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> TermCounts:
        """Decode terms. Raises ValueError if the length of the bytes is invalid."""
        entries = np.frombuffer(data, dtype=_ENTRY)
        return cls(entries["term"].astype(np.uint64), entries["count"].astype(np.uint16))


def check_language(field: str, language: str) -> None:
    """Raise an InvalidRequest that names the field if the language has no stemmer."""
    if language not in LANGUAGES:
        choices = ", ".join(LANGUAGES)
        raise InvalidRequest(f"{field} {language[:80]!r} is not known: use one of {choices}")


def count_terms(text: str, language: str) -> TermCounts:
    """Count the terms of a text."""
    counts = Counter(_stem(split_terms(text), language))
    ids = np.fromiter(map(_id_of, counts), dtype=np.uint64, count=len(counts))
    order = np.argsort(ids)
    numbers = np.fromiter((min(count, MAX_COUNT) for count in counts.values()), dtype=np.uint16, count=len(counts))
    return TermCounts(ids[order], numbers[order])


def query_term_ids(query: str, language: str) -> TermIds:
    """Return the ids of the distinct terms in the last 8192 characters of a query in ascending order."""
    terms = dict.fromkeys(_stem(split_terms(query[-MAX_QUERY_CHARS:]), language))
    ids = np.fromiter(map(_id_of, terms), dtype=np.uint64, count=len(terms))
    ids.sort()
    return ids


def content_digest(content: str) -> int:
    """Return a signed 64-bit hash of a chunk's content, used to find duplicates."""
    return int.from_bytes(hashlib.blake2b(content.encode(), digest_size=8).digest(), "little", signed=True)


@lru_cache(maxsize=1 << 17)
def _id_of(term: str) -> int:
    # A 64-bit hash needs no table of terms. The probability of a collision among a million terms is 3e-8.
    return int.from_bytes(hashlib.blake2b(term.encode(), digest_size=8).digest(), "little")


def _stem(terms: list[str], language: str) -> list[str]:
    if language == NO_LANGUAGE:
        return terms
    stemmed: list[str] = _stemmer(language).stemWords(terms)
    return stemmed


@lru_cache
def _stemmer(language: str) -> Stemmer.Stemmer:
    # A stemmer is stateful, but holds the interpreter lock while it works, so threads can share it.
    return Stemmer.Stemmer(language)
