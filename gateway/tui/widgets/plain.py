"""Text of models, tools and people for the screen: nothing in it is markup or a control of the terminal."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static

from pagantic_common.domain.text.terminal import visible_text

TAB_COLUMNS = 4
MAX_NAME_CHARS = 100
MAX_NOTE_CHARS = 600


def plain(text: str) -> Content:
    """Return a text without markup, and with control characters shown by name."""
    return Content(visible_text(text).expandtabs(TAB_COLUMNS))


def shortened(text: str, most: int) -> str:
    """Return the first characters of a text, and the number of the others."""
    if len(text) <= most:
        return text
    return f"{text[:most]} … ({len(text) - most:,} more characters)"


class Plain(Static):
    """Shows a text as it is."""

    def __init__(self, text: str = "", *, classes: str = "", id: str | None = None) -> None:  # noqa: A002 - textual's
        super().__init__(plain(text), classes=classes, id=id, markup=False)

    def show(self, text: str) -> None:
        """Show another text."""
        self.update(plain(text))
