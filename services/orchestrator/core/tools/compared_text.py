"""Normalizes texts to words, identifiers and groups of characters, to compare texts of different authors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from pagantic_common.domain.text.normalization import INVISIBLE, normalize_nfkc

_WORD = re.compile(r"[\w@./\\:+-]+")
_EDGES = "./\\:+-"  # characters at the edges of a word, such as the end of a sentence, that are not part of it
_IDENTIFIER = re.compile(r"[\d@/\\_]|\w[.:]\w")
_PART = re.compile(r"[^/\\:]+")
_HOST = re.compile(r"[^@]*\w\.[a-z]\w+")
_NUMBER = re.compile(r"(-?\d{1,30}(?:\.\d{1,30})?)")
_SEPARATOR = re.compile(r"[\W_]+")


def _comparable(text: str) -> str:
    """Return a normalized form of a text for comparison."""
    return INVISIBLE.sub("", normalize_nfkc(INVISIBLE.sub("", text))).casefold()


def words_of(text: str) -> list[str]:
    """Return the words of a text in a normalized form for comparison."""
    stripped = (word.strip(_EDGES) for word in _WORD.findall(_comparable(text)))
    return [_number_or_word(word) for word in stripped if word]


def grouped_of(text: str) -> str:
    """Return the letters and digits of a text, without separators."""
    return _SEPARATOR.sub("", _comparable(text))


def identifiers_of(words: Iterable[str]) -> list[str]:
    """Return the identifiers among words, followed by the hosts and other identifiers inside paths and URLs."""
    identifiers = [word for word in words if _IDENTIFIER.search(word)]
    parts = [part for word in identifiers for part in _PART.findall(word) if part != word and _is_telling(part)]
    return [*identifiers, *parts]


def hosts_of(identifiers: Iterable[str]) -> list[str]:
    """Return the hosts of addresses.

    Searches cover an address as a whole, but a call may use only the host.
    """
    return [host for _, at, host in (word.rpartition("@") for word in identifiers) if at]


def _is_telling(part: str) -> bool:
    """Return whether a part of a URL or a path identifies its target."""
    return bool(_HOST.fullmatch(part)) or "@" in part


def _number_or_word(word: str) -> str:
    match = _NUMBER.fullmatch(word)
    if match is None:
        return word
    return f"{float(match[1]):.12g}" if "." in match[1] else match[1].lstrip("0") or "0"


def join_words(words: Sequence[str]) -> str:
    """Join words with blanks and add a blank at each end, so that a sequence of words can be found as a substring."""
    return f" {' '.join(words)} "


def between_breaks(joined: str) -> str:
    """Return a text between line breaks, so that its occurrences as a whole line can be counted."""
    return f"\n{joined}\n"


def is_plain(words: Sequence[str]) -> bool:
    """Return whether a value consists of several words and no identifier."""
    return len(words) > 1 and not any(map(_IDENTIFIER.search, words))
