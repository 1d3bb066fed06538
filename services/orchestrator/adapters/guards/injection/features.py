"""Represents texts as hashed n-grams, identically in training and in inference.

Source: K. Weinberger et al., "Feature hashing for large scale multitask learning", ICML 2009.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

BUCKETS: Final = 1 << 17
PART_CHARS: Final = 400  # A long text is scored in parts, so that it cannot mask a short injection.
OVERLAP_CHARS: Final = 200
_CHAR_GRAMS: Final = (3, 4, 5)
_WORD_GRAMS: Final = (1, 2, 3)
_WORD = re.compile(r"\w+|[^\w\s]")


def parts_of(text: str) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each part of a text. Consecutive parts overlap."""
    start = 0
    while True:
        end = min(len(text), start + PART_CHARS)
        yield start, end
        if end == len(text):
            return
        start = end - OVERLAP_CHARS


def buckets_of(text: str) -> npt.NDArray[np.int64]:
    """Return the sorted, distinct buckets of a text's n-grams."""
    words = _WORD.findall(text.casefold())
    grams = {" ".join(words[at : at + size]) for size in _WORD_GRAMS for at in range(len(words) - size + 1)}
    line = f" {' '.join(words)} "
    grams.update(f"#{line[at : at + size]}" for size in _CHAR_GRAMS for at in range(len(line) - size + 1))
    hashed = {zlib.crc32(gram.encode(errors="replace")) % BUCKETS for gram in grams}
    return np.array(sorted(hashed), dtype=np.int64)
