"""Shows long, growing text. Only the last block is laid out again, and only the start of very long text is shown."""

from __future__ import annotations

from typing import Final

from textual.app import ComposeResult
from textual.containers import Vertical

from gateway.tui.widgets.plain import Plain
from pagantic_common.client import TextPart

BLOCK_CHARS: Final = 2_000
MAX_SHOWN: Final = 100_000


def first_block(text: str) -> int:
    """Return the length of the first block of a text, or 0 if the text is too short for a block.

    A block ends after a line or, failing that, after a space. The line feed or space at its end is not shown.
    """
    if len(text) <= 2 * BLOCK_CHARS:
        return 0
    for sign in ("\n", " "):
        if (at := text.rfind(sign, BLOCK_CHARS, 2 * BLOCK_CHARS)) >= 0:
            return at + 1
    return 2 * BLOCK_CHARS


def shown_of(part: TextPart) -> tuple[str, int]:
    """Return the start of a text, which is shown, and the number of remaining characters."""
    return part.text[:MAX_SHOWN], max(0, part.length - MAX_SHOWN)


class GrowingText(Vertical):
    """Shows a text in blocks. Complete blocks are not drawn again."""

    def __init__(self, *, classes: str = "") -> None:
        super().__init__(classes=classes)
        self._part = TextPart()
        self._is_ready = False
        self._blocks: list[str] = []
        self._last = Plain()
        self._rest = Plain(classes="less")
        self._rest.display = False

    def compose(self) -> ComposeResult:
        """Compose an empty block."""
        yield self._last
        yield self._rest

    def on_mount(self) -> None:
        """Show the text that has arrived in the meantime."""
        self._is_ready = True
        self.show(self._part)

    def show(self, part: TextPart) -> None:
        """Show a text, redrawing everything if it does not continue the previous text."""
        self._part = part
        if self._is_ready:
            self._draw(part)

    def _draw(self, part: TextPart) -> None:
        drawn_length, text, left_out = sum(map(len, self._blocks)), *shown_of(part)
        if text[:drawn_length] != "".join(self._blocks):
            self.query(".block").remove()
            self._blocks.clear()
            drawn_length = 0
        while length := first_block(text[drawn_length : drawn_length + 2 * BLOCK_CHARS + 1]):
            self._add_block(text[drawn_length : drawn_length + length])
            drawn_length += length
        self._last.show(text[drawn_length:])
        self._rest.display = left_out > 0
        if left_out:
            self._rest.show(f"… {left_out:,} more characters: `pagantic show` and the request's id print all")

    def _add_block(self, text: str) -> None:
        self._blocks.append(text)
        shown = text
        if text.endswith(("\n", " ")):
            shown = text[:-1]
        self.mount(Plain(shown, classes="block"), before=self._last)
