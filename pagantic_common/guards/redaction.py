"""Redacts a text, also a text that arrives in pieces, so that no part of a finding is released.

Theory of operation. A streaming text is checked each time that it has grown by STRIDE characters, in a window from some
characters before the released end to the last character. Text that may belong to an incomplete finding is held back:
the last `window` characters, a word that has not ended, and a finding that is not settled.

Invariants:
    1. The windows depend on the text alone, never on its pieces: any division into pieces gives the same text.
    2. No character of a finding is released once the finding was in a window, and each window reaches `window`
       characters beyond the text that is released after it.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pagantic_common.guards.plugin import Finding

STRIDE: Final = 64
MAX_HELD: Final = 64 * 1024
_MAX_WORD = 4096
_WORD = frozenset(string.ascii_letters + string.digits + "+/=_.~:@%-")


class TooLongFindingError(Exception):
    """A finding did not end within MAX_HELD characters."""


@dataclass(frozen=True, slots=True)
class Redacted:
    """A text without its findings, and their kinds, in order; `held` is the kind of a finding that has not ended."""

    text: str
    kinds: tuple[str, ...] = ()
    held: str = ""


@dataclass(frozen=True, slots=True)
class Window:
    """A part of a text that begins `start` characters after its beginning."""

    text: str
    start: int


def redact(text: str, findings: Iterable[Finding]) -> Redacted:
    """Replace each finding by a mark with its kind; merge overlapping findings under the kind of the first."""
    parts: list[str] = []
    kinds: list[str] = []
    at = 0
    for found in merge(findings, len(text)):
        parts += [text[at : found.start], f"[redacted: {found.kind}]"]
        kinds.append(found.kind)
        at = found.end
    return Redacted("".join([*parts, text[at:]]), tuple(kinds))


def merge(findings: Iterable[Finding], length: int) -> list[Finding]:
    """Return findings in order, within a text of this length, and joined where they overlap."""
    merged: list[Finding] = []
    for found in sorted(findings, key=lambda one: (one.start, -one.end)):
        start, end = max(0, found.start), min(length, found.end)
        if end <= start:
            continue
        if merged and start < merged[-1].end:
            last = merged[-1]
            merged[-1] = Finding(last.start, max(last.end, end), last.kind)
        else:
            merged.append(Finding(start, end, found.kind))
    return merged


class TextStream:
    """A text that streams through a guard.

    Call `next_window` after each `add` and after `end`, and `settle` its findings, until it returns None. With a
    `window` of 0 the text is checked once, when it has ended.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._text = ""  # The text begins at the position `_base`, and the pieces follow.
        self._pieces: list[str] = []  # Joining each to the text at once would take the square of its length.
        self._base = 0
        self._begin = 0  # The next window begins here.
        self._out = 0  # The text from this position on is held back.
        self._due = STRIDE
        self._length = 0
        self._has_ended = False

    def add(self, text: str) -> None:
        """Add a piece."""
        self._pieces.append(text)
        self._length += len(text)

    def end(self) -> None:
        """Say that no more comes."""
        self._has_ended = True

    @property
    def held(self) -> str:
        """The text that was added but not yet released."""
        return self._joined()[self._out - self._base :]

    def next_window(self) -> Window | None:
        """Return the next part to check; None while more text is needed, and after the last part."""
        if self._out == self._length and self._has_ended:
            return None
        if self._window and self._due <= self._length:
            return Window(self._joined()[self._begin - self._base : self._due - self._base], self._begin)
        if not self._has_ended:
            return None
        return Window(self._joined()[self._begin - self._base :], self._begin)

    def settle(self, findings: Sequence[Finding]) -> Redacted:
        """Take the findings in the last returned window, and return the text to release.

        Raises TooLongFindingError for a finding without an end.
        """
        window = self.next_window()
        if window is None:
            return Redacted("")
        is_last = not self._window or self._due > self._length  # before the end no other window is returned
        before = self._out - self._begin  # characters that are out already
        text = window.text[before:]
        merged = merge((Finding(one.start - before, one.end - before, one.kind) for one in findings), len(text))
        size, held = len(text), ""
        if not is_last:
            size = _word_start(text, max(0, len(text) - self._window))
            straddling = next((one for one in merged if one.start < size < one.end), None)
            if straddling is not None:
                size, held = straddling.start, straddling.kind
            self._due += STRIDE
        if len(text) - size > MAX_HELD:
            raise TooLongFindingError
        self._let_out(size)
        return replace(redact(text[:size], merged), held=held)

    def _joined(self) -> str:
        if self._pieces:
            self._text = "".join([self._text, *self._pieces])
            self._pieces.clear()
        return self._text

    def _let_out(self, size: int) -> None:
        self._out += size
        self._begin = max(self._begin, self._out - self._window)
        done = self._begin - self._base
        if 2 * done > len(self._text):  # Dropping it each time would take the square of the length of a large piece.
            self._text = self._text[done:]
            self._base = self._begin


def _word_start(text: str, end: int) -> int:
    """Return where the word before `end` begins; `end` without a word, and for a word that is too long."""
    start = end
    while start and text[start - 1] in _WORD and end - start < _MAX_WORD:
        start -= 1
    if end - start == _MAX_WORD:
        return end
    return start
