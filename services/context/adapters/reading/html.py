"""Reads HTML as text with headings: the main part of a page without navigation, scripts and styles."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Final

from selectolax.lexbor import LexborHTMLParser, LexborNode

from services.context.core.reading.bounds import ReadingBounds
from services.context.core.reading.draft import ReadText, TextDraft

_MAIN: Final = "main, [role=main], article"
_LEFT_OUT: Final = (
    "script, style, noscript, template, svg, math, iframe, object, nav, aside, form, button, select, dialog, "
    "[role=navigation], [role=search], [role=banner], [role=contentinfo], [hidden], [aria-hidden=true], "
    "body > header, body > footer, .headerlink, .navheader, .navfooter, .sphinxsidebar, .related"
)
_HEADINGS: Final = {f"h{level}": level for level in range(1, 7)}
_CELLS: Final = frozenset({"td", "th"})
_BLOCKS: Final = frozenset({
    "address", "article", "blockquote", "body", "center", "dd", "details", "div", "dl", "dt", "fieldset", "figcaption",
    "figure", "footer", "header", "hr", "html", "li", "main", "ol", "p", "section", "summary", "table",
    "tbody", "td", "tfoot", "th", "thead", "tr", "ul",
})  # fmt: skip


def read_html(text: str, bounds: ReadingBounds) -> ReadText:
    """Return the text of a page with its headings in Markdown form."""
    page = LexborHTMLParser(text)
    title = page.css_first("title")
    writer = _Writer(TextDraft(bounds))
    left_out = {node.mem_id for node in page.css(_LEFT_OUT)}
    mains = page.css(_MAIN)
    root = page.body
    if len(mains) == 1:
        root = mains[0]
    if root is not None:
        writer.write(root, left_out)
    return writer.draft.finish(title.text() if title is not None else "")


def _walk(root: LexborNode, left_out: AbstractSet[int]) -> Iterator[tuple[LexborNode, bool]]:
    """Yield each node below a root twice: with True at its start and with False at its end. Depth is unlimited."""
    node, depth = root.child, 1
    while node is not None and depth:
        if node.mem_id not in left_out:
            yield node, True
            if node.child is not None:
                node, depth = node.child, depth + 1
                continue
            yield node, False
        while node is not None and node.next is None:
            node, depth = node.parent, depth - 1
            if node is None or not depth:
                return
            yield node, False
        node = node.next


class _Writer:
    """Collects the words of a paragraph, table row or code block, and writes them at its end."""

    def __init__(self, draft: TextDraft) -> None:
        self.draft = draft
        self._words: list[str] = []
        self._row: list[str] | None = None
        self._code: list[str] = []
        self._code_id: int | None = None  # the `mem_id` of the outermost `pre` around the current node
        self._prefix = ""

    def write(self, root: LexborNode, left_out: AbstractSet[int]) -> None:
        """Write a node without the descendants whose `mem_id` is in `left_out`."""
        for node, begins in _walk(root, left_out):
            if self._code_id is not None:
                self._read_code(node, begins)
            elif begins:
                self._begin(node)
            else:
                self._end(node)
        self._flush()

    def _read_code(self, node: LexborNode, begins: bool) -> None:
        """Read a node within a code block, or the end of the block."""
        if node.mem_id == self._code_id:
            self._code_id = None
            self._write_code()
        elif begins and node.tag == "-text":
            self._code.append(node.text_content or "")
        elif begins and node.tag == "br":
            self._code.append("\n")

    def _begin(self, node: LexborNode) -> None:
        tag = node.tag or ""
        if tag == "-text":
            self._words.append(node.text_content or "")
        elif tag == "br":
            self._words.append("\n")
        elif tag == "pre":
            self._flush()
            self._code_id = node.mem_id
        elif tag in _BLOCKS or tag in _HEADINGS:
            self._flush()
        if tag == "tr":
            self._write_row()  # The row belongs to the enclosing table.
            self._row = []
        elif tag == "li":
            self._prefix = "- "

    def _end(self, node: LexborNode) -> None:
        tag = node.tag or ""
        if tag == "tr":
            self._write_row()
        elif tag in _CELLS and self._row is not None:
            self._row.append(self._take_words())
        elif tag in _HEADINGS and self._row is None:
            self.draft.add_heading(_HEADINGS[tag], self._take_words())
        elif tag in _BLOCKS:
            self._flush()

    def _write_row(self) -> None:
        if self._row is None:
            return
        cells = [*self._row, self._take_words()]
        self._row = None
        self.draft.add_line(" | ".join(filter(None, cells)))

    def _write_code(self) -> None:
        text = "".join(self._code)
        self._code.clear()
        if not text.strip():
            return
        fence = "```"
        while fence in text:
            fence += "`"
        body = text.strip("\n")
        self.draft.add_block(f"{fence}\n{body}\n{fence}")

    def _flush(self) -> None:
        """Write the collected paragraph. Within a table row, only separate its words from the rest of the cell."""
        if self._row is not None:
            self._words.append(" ")
            return
        text = self._take_words()
        if not text:
            return
        if self._prefix:
            self.draft.add_line(f"{self._prefix}{text}")
        else:
            self.draft.add_block(text)
        self._prefix = ""

    def _take_words(self) -> str:
        lines = "".join(self._words).split("\n") if "\n" in self._words else ["".join(self._words)]
        self._words.clear()
        return "\n".join(filter(None, (" ".join(line.split()) for line in lines)))
