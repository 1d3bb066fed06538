"""The readers of the formats that are text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from services.context.adapters.reading.html import read_html
from services.context.core.reading.bounds import ReadingBounds
from services.context.core.reading.draft import ReadText
from services.context.core.reading.formats import Format
from services.context.core.reading.markdown import read_markdown
from services.context.core.reading.records import read_json, read_json_lines, read_table

TEXT_READERS: Final[Mapping[Format, Callable[[str, ReadingBounds], ReadText]]] = {
    Format.TEXT: lambda text, _bounds: ReadText(text),
    Format.MARKDOWN: lambda text, _bounds: read_markdown(text),
    Format.HTML: read_html,
    Format.JSON: read_json,
    Format.JSON_LINES: read_json_lines,
    Format.CSV: read_table,
}
