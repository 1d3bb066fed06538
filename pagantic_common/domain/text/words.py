"""Splits text of any language into words, and recognizes letters of scripts without spaces between words."""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from typing import Final

MAX_WORD_CHARS: Final = 40  # A longer run is split into several words.
_WITHOUT_SPACES = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")


def is_without_spaces(char: str) -> bool:
    """Return whether a letter belongs to a script without spaces between words."""
    return unicodedata.name(char, "").startswith(_WITHOUT_SPACES)


def split_words(text: str) -> list[tuple[int, int]]:
    """Return the start and end of each word, in order.

    A word is a run of at most 40 letters, digits, marks and underscores. In a script without spaces, each letter with
    its marks is a word.
    """
    spans: list[tuple[int, int]] = []
    start = -1
    for position, char in enumerate(text):
        kind = _kind_of(char)
        if start >= 0 and (kind in (_GAP, _ALONE) or (kind == _LETTER and _is_full(text, start, position))):
            spans.append((start, position))
            start = -1
        if start < 0 and kind != _GAP:
            start = position
    if start >= 0:
        spans.append((start, len(text)))
    return spans


_GAP, _LETTER, _MARK, _ALONE = range(4)


@lru_cache(maxsize=4096)
def _kind_of(char: str) -> int:
    if char == "_":
        return _LETTER
    category = unicodedata.category(char)[0]
    if category == "M":
        return _MARK
    if category not in "LN":
        return _GAP
    return _ALONE if is_without_spaces(char) else _LETTER


def _is_full(text: str, start: int, position: int) -> bool:
    return position - start >= MAX_WORD_CHARS or _kind_of(text[start]) == _ALONE
