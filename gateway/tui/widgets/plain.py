"""Text of models, tools and people for the screen: nothing in it is markup or a control of the terminal."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static

from pagantic_common.domain.text.terminal import visible_text

TAB_COLUMNS = 4


def plain(text: str) -> Content:
    """Return a text in which nothing is markup, and control characters are shown by name."""
    return Content(visible_text(text).expandtabs(TAB_COLUMNS))


class Plain(Static):
    """Shows a text as it is."""

    def __init__(self, text: str = "", *, classes: str = "", id: str | None = None) -> None:  # noqa: A002 - textual's
        super().__init__(plain(text), classes=classes, id=id, markup=False)

    def show(self, text: str) -> None:
        """Show another text."""
        self.update(plain(text))
