"""Redacts a whole text, or a text that arrives in pieces, so that no part of a finding is released.

Theory of operation. A streaming text is checked whenever it has grown by STRIDE characters. The checked window reaches
from a few characters before the end of the released text to the last character. Text that may belong to an incomplete
finding is held back: the last `window` characters, an unfinished word, and a finding that is not settled.

Invariants:
    1. The windows depend only on the text, not on its division into pieces, so any division yields the same text.
    2. No character of a finding is released once the finding was in a window. Each window reaches `window` characters
       beyond the text that is released after it.
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
    """A finding has not ended within MAX_HELD characters."""


@dataclass(frozen=True, slots=True)
class Redacted:
    """A text without its findings, and the kinds of the findings, in order.

    `held` is the kind of a finding that has not ended.
    """

    text: str
    kinds: tuple[str, ...] = ()
    held: str = ""


@dataclass(frozen=True, slots=True)
class Window:
    """A part of a text, which starts at character `start` of the text."""

    text: str
    start: int


def redact(text: str, findings: Iterable[Finding]) -> Redacted:
    """Replace each finding with a mark that names its kind. Overlapping findings merge into the kind of the first."""
    parts: list[str] = []
    kinds: list[str] = []
    at = 0
    for finding in merge(findings, len(text)):
        parts += [text[at : finding.start], f"[redacted: {finding.kind}]"]
        kinds.append(finding.kind)
        at = finding.end
    return Redacted("".join([*parts, text[at:]]), tuple(kinds))


def merge(findings: Iterable[Finding], length: int) -> list[Finding]:
    """Return the findings in order, limited to a text of this length, with overlapping findings merged."""
    merged: list[Finding] = []
    for finding in sorted(findings, key=lambda entry: (entry.start, -entry.end)):
        start, end = max(0, finding.start), min(length, finding.end)
        if end <= start:
            continue
        if merged and start < merged[-1].end:
            last = merged[-1]
            merged[-1] = Finding(last.start, max(last.end, end), last.kind)
        else:
            merged.append(Finding(start, end, finding.kind))
    return merged


class TextStream:
    """A text that streams through a guard.

    After each `add` and after `end`, call `next_window` and pass its findings to `settle`, until `next_window` returns
    None. With a `window` of 0, the text is checked once, after it has ended.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._text = ""  # starts at position `_base`; the pieces follow
        self._pieces: list[str] = []  # Joining each piece immediately would take quadratic time.
        self._base = 0
        self._begin = 0  # start of the next window
        self._out = 0  # the text from this position onwards is held back
        self._due = STRIDE
        self._length = 0
        self._has_ended = False

    def add(self, text: str) -> None:
        """Add a piece of the text."""
        self._pieces.append(text)
        self._length += len(text)

    def end(self) -> None:
        """Mark the text as complete."""
        self._has_ended = True

    @property
    def held(self) -> str:
        """The text that was added but not yet released."""
        return self._joined()[self._out - self._base :]

    def next_window(self) -> Window | None:
        """Return the next part to check, or None if more text is needed or all of the text was checked."""
        if self._out == self._length and self._has_ended:
            return None
        if self._window and self._due <= self._length:
            return Window(self._joined()[self._begin - self._base : self._due - self._base], self._begin)
        if not self._has_ended:
            return None
        return Window(self._joined()[self._begin - self._base :], self._begin)

    def settle(self, findings: Sequence[Finding]) -> Redacted:
        """Apply the findings in the last returned window, and return the text to release.

        Raises TooLongFindingError if a finding has not ended in time.
        """
        window = self.next_window()
        if window is None:
            return Redacted("")
        is_last = not self._window or self._due > self._length  # This is the last window.
        before = self._out - self._begin  # characters already released
        text = window.text[before:]
        merged = merge(
            (Finding(finding.start - before, finding.end - before, finding.kind) for finding in findings), len(text)
        )
        size, held = len(text), ""
        if not is_last:
            size = _word_start(text, max(0, len(text) - self._window))
            straddling = next((finding for finding in merged if finding.start < size < finding.end), None)
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
        if 2 * done > len(self._text):  # Dropping released text each time would take quadratic time.
            self._text = self._text[done:]
            self._base = self._begin


def _word_start(text: str, end: int) -> int:
    """Return the start of the word that ends at `end`, or `end` if there is no word or the word is too long."""
    start = end
    while start and text[start - 1] in _WORD and end - start < _MAX_WORD:
        start -= 1
    if end - start == _MAX_WORD:
        return end
    return start
