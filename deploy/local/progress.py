"""Shows the progress of a wait: a line that is rewritten on a terminal, a few plain lines elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from typing import Self, TextIO

FIRST_LINE_S = 2.0
LINE_INTERVAL_S = 30.0
REWRITE_INTERVAL_S = 0.2


class Progress:
    """A wait that begins with this object; use it as a context manager, which clears the terminal's line."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._started_s = time.monotonic()
        self._next_s = FIRST_LINE_S
        if self._stream.isatty():
            self._next_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream.isatty():
            self._write("\r\x1b[K")

    @property
    def waited_s(self) -> float:
        """Seconds since the start of the wait."""
        return time.monotonic() - self._started_s

    def show(self, text: str) -> None:
        """Show the reason of the wait; may be called often."""
        waited_s = self.waited_s
        if waited_s < self._next_s:
            return
        if self._stream.isatty():
            self._next_s = waited_s + REWRITE_INTERVAL_S
            self._write(f"\r\x1b[K{waited_s:3.0f} s  {text}"[: _columns()])
        else:
            self._next_s = waited_s + LINE_INTERVAL_S
            self._write(f"{waited_s:3.0f} s  {text}\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def _columns() -> int:
    return shutil.get_terminal_size().columns + len("\r\x1b[K") - 1
