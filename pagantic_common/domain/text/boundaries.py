"""Finds the positions between words at which a quote may begin and end without altering a word or a number."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from pagantic_common.domain.text.words import is_without_spaces, split_words

_DIGIT_SPACES: Final = "\u00a0\u2007\u2009\u202f"  # spaces that group the digits of a number
_SYMBOLS: Final = ("Sc", "Sm", "So")  # currency, mathematics, and other signs, such as a degree
_BEFORE_NUMBER, _AFTER_NUMBER = ".,#\u00a7", "%\u2030\u2031\u066a\uff05\ufe6a\u2032\u2033"  # e.g. percent and primes
_OPENING: Final = ("Ps", "Pi")  # brackets and quotation marks


@dataclass(frozen=True, slots=True)
class Boundary:
    """A position where a quote may end and another quote may begin: a gap with white space, or an edge of the text.

    A gap between two letters of scripts without spaces is also a boundary.

    Attributes:
        words: The number of words before the boundary.
        left: The end of the previous word, or the start of the text.
        right: The start of the next word, or the end of the text.
        ends: The positions where a quote that ends with the previous word may end, or the start
            of the text without a previous word.
        begins: The positions where a quote that begins with the next word may begin, or the end
            of the text without a next word.
    """

    words: int
    left: int
    right: int
    ends: range
    begins: range


def find_boundaries(text: str) -> list[Boundary]:
    """Return the boundaries of a text in order, including its edges, or no boundaries for a text without words."""
    words = split_words(text)
    if not words:
        return []
    right = words[0][0]
    boundaries = [Boundary(0, 0, right, range(1), range(right - _attached_before(text, 0, right) + 1))]
    for count, ((_, left), (right, _)) in enumerate(pairwise(words), 1):
        if is_without_spaces(text[words[count - 1][0]]) and is_without_spaces(text[right]):
            boundaries += _boundary_of_letters(text, count, left, right)
        else:
            boundaries += _boundary_with_space(text, count, left, right)
    left, right = words[-1][1], len(text)
    ends = range(left + _attached_after(text, left, right), right + 1)
    boundaries.append(Boundary(len(words), left, right, ends, range(right, right + 1)))
    return boundaries


def find_quote(quote: str, source: str) -> int:
    """Return the first position in a source at which a quote begins and ends at boundaries, or -1 without a match."""
    start = source.find(quote)
    if start < 0:
        return start
    boundaries = find_boundaries(source)
    begins = {position for boundary in boundaries for position in boundary.begins}
    ends = {position for boundary in boundaries for position in boundary.ends}
    while start >= 0 and not (start in begins and start + len(quote) in ends):
        start = source.find(quote, start + 1)
    return start


def shortest_quotes(boundaries: Sequence[Boundary], least: int, most: int) -> Iterator[tuple[int, int]]:
    """Yield the boundary indexes of the shortest quote from each boundary with at least `least` words.

    A boundary is omitted if its shortest quote has more than `most` words.
    """
    end = 0
    for begin, boundary in enumerate(boundaries):
        while end < len(boundaries) and boundaries[end].words - boundary.words < least:
            end += 1
        if end < len(boundaries) and boundaries[end].words - boundary.words <= most:
            yield begin, end


def _boundary_of_letters(text: str, words: int, left: int, right: int) -> Iterator[Boundary]:
    """Yield the boundary between two characters of scripts without spaces, unless both are digits."""
    if text[left - 1].isdigit() and text[right].isdigit():
        return
    middle = left
    while middle < right and unicodedata.category(text[middle]) not in _OPENING:
        middle += 1
    end, begin = left + _attached_after(text, left, right), right - _attached_before(text, left, right)
    yield Boundary(words, left, right, range(end, max(end, middle) + 1), range(min(begin, middle), begin + 1))


def _boundary_with_space(text: str, words: int, left: int, right: int) -> Iterator[Boundary]:
    """Yield the boundary between two words that are separated by white space."""
    spaces = [position for position in range(left, right) if text[position].isspace()]
    if not spaces or (text[left:right] in _DIGIT_SPACES and text[left - 1].isdigit() and text[right].isdigit()):
        return
    ends = range(left + _attached_after(text, left, right), spaces[-1] + 2)
    begins = range(spaces[0], right - _attached_before(text, left, right) + 1)
    yield Boundary(words, left, right, ends, begins)


def _attached_before(text: str, left: int, right: int) -> int:
    """Return the number of characters attached to the start of the next word, or 0 if that word is not a number."""
    start = right
    while text[right].isnumeric() and start > left and not text[start - 1].isspace():
        start -= 1
    while start < right and not _belongs(text[start], ("Pd", *_SYMBOLS), _BEFORE_NUMBER):
        start += 1
    return right - start


def _attached_after(text: str, left: int, right: int) -> int:
    """Return the number of characters attached to the end of the previous word, or 0 if that word is not a number."""
    end = left
    while text[left - 1].isnumeric() and end < right and not text[end].isspace():
        end += 1
    while end > left and not _belongs(text[end - 1], _SYMBOLS, _AFTER_NUMBER):
        end -= 1
    return end - left


def _belongs(char: str, categories: tuple[str, ...], marks: str) -> bool:
    return char in marks or unicodedata.category(char) in categories
