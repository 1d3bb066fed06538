"""Turns the bytes of tokens into text to show: whole characters only, and no part of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class TextStream:
    """Gives out text as early as possible.

    Invariants:
        1. Text that was given out never changes and has no part of a stop string.
        2. A character is given out whole; bytes that can never be a character become U+FFFD.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stop = tuple(stop)
        self._held = ""
        self.found_stop = ""

    @property
    def is_stopped(self) -> bool:
        """Whether the text contained a stop string, which `found_stop` then is."""
        return bool(self.found_stop)

    def fork(self) -> TextStream:
        """Return a stream with the same text so far, which continues separately."""
        other = TextStream(self._stop)
        other._decoder.setstate(self._decoder.getstate())
        other._held = self._held
        other.found_stop = self.found_stop
        return other

    def feed(self, data: bytes) -> str:
        """Take the bytes of the next tokens and return the text to show now."""
        self._held += self._decoder.decode(data)
        return self._release(at_end=False)

    def finish(self) -> str:
        """Return the rest of the text at the end of the output."""
        self._held += self._decoder.decode(b"", final=True)
        return self._release(at_end=True)

    def _release(self, *, at_end: bool) -> str:
        if self.is_stopped:
            return ""
        cut = len(self._held)
        found = [(position, stop) for stop in self._stop if (position := self._held.find(stop)) >= 0]
        if found:
            cut, self.found_stop = min(found)
        elif not at_end:
            cut -= self._held_back()
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown

    def _held_back(self) -> int:
        """Return the length of the longest tail that may begin a stop string."""
        return max(
            (
                size
                for stop in self._stop
                for size in range(1, min(len(stop), len(self._held) + 1))
                if self._held.endswith(stop[:size])
            ),
            default=0,
        )
