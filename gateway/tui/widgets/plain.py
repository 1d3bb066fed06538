"""Shows text from models, tools and people. No part of it is interpreted as markup or as a terminal control."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static

from pagantic_common.domain.text.terminal import visible_text

TAB_COLUMNS = 4
MAX_NAME_CHARS = 100
MAX_NOTE_CHARS = 600


def plain(text: str) -> Content:
    """Return text as content without markup, and with control characters shown by name."""
    return Content(visible_text(text).expandtabs(TAB_COLUMNS))


def shortened(text: str, most: int) -> str:
    """Return the first characters of a text and the number of remaining characters."""
    if len(text) <= most:
        return text
    return f"{text[:most]} … ({len(text) - most:,} more characters)"


class Plain(Static):
    """Shows text without interpreting it as markup."""

    def __init__(self, text: str = "", *, classes: str = "", id: str | None = None) -> None:  # noqa: A002 - textual's
        super().__init__(plain(text), classes=classes, id=id, markup=False)

    def show(self, text: str) -> None:
        """Replace the shown text."""
        self.update(plain(text))
