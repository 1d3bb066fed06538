"""Finds words in text of any language."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from pagantic_common.domain.text.normalization import normalize_nfkc
from pagantic_common.domain.text.words import is_without_spaces

MAX_WORDS = 1000


def fold(text: str) -> str:
    """Return the text for comparison: compatible forms and letters of either case become equal."""
    folded = normalize_nfkc(normalize_nfkc(text).casefold())
    return "".join(char for char in folded if unicodedata.category(char) != "Cf")  # soft hyphens, zero-width spaces


def find_words(words: Sequence[str], text: str) -> list[str]:
    """Return the words that occur in the text, in the words' order.

    Only whole words count: a word next to a letter, digit or mark is part of a longer word.
    """
    folded = fold(text)
    return [word for word in words if _occurs_in(fold(word), folded)]


def _occurs_in(word: str, text: str) -> bool:
    if not word:
        return False
    start = text.find(word)
    while start >= 0:
        end = start + len(word)
        if _is_border(text[start - 1 : start], word[0]) and _is_border(text[end : end + 1], word[-1]):
            return True
        start = text.find(word, start + 1)
    return False


def _is_border(outside: str, inside: str) -> bool:
    """Return whether a word ends between its character `inside` and the character `outside`, empty at the text's ends.

    A word that ends in a letter of a script without spaces may occur anywhere.
    """
    if not outside:
        return True
    if unicodedata.category(outside).startswith("M"):
        return False
    if not outside.isalnum() or not inside.isalnum():
        return True
    return is_without_spaces(inside)
