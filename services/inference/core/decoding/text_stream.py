"""Bytes of tokens to text that may be shown: whole characters only, and nothing of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class TextStream:
    """Gives out text as early as it is safe.

    Invariants:
        1. What was given out never changes and never holds a part of a stop string.
        2. A character is given out whole or, when its bytes can never be one, as U+FFFD.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stop = tuple(stop)
        self._held = ""
        self.is_stopped = False

    def fork(self) -> TextStream:
        """Return a stream that has given out as much and goes on by itself."""
        other = TextStream(self._stop)
        other._decoder.setstate(self._decoder.getstate())
        other._held = self._held
        other.is_stopped = self.is_stopped
        return other

    def feed(self, data: bytes) -> str:
        """Take the bytes of the next tokens and return the text that may be shown now."""
        self._held += self._decoder.decode(data)
        return self._release(at_end=False)

    def finish(self) -> str:
        """Return what is left at the end of the output."""
        self._held += self._decoder.decode(b"", final=True)
        return self._release(at_end=True)

    def _release(self, *, at_end: bool) -> str:
        if self.is_stopped:
            return ""
        found = [position for stop in self._stop if (position := self._held.find(stop)) >= 0]
        if found:
            self.is_stopped = True
            cut = min(found)
        else:
            cut = len(self._held) if at_end else len(self._held) - self._held_back()
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown

    def _held_back(self) -> int:
        """Length of the longest tail that a stop string may begin with."""
        return max(
            (
                size
                for stop in self._stop
                for size in range(1, min(len(stop), len(self._held) + 1))
                if self._held.endswith(stop[:size])
            ),
            default=0,
        )
