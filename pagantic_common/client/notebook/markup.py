"""Builds the HTML of notebook outputs, with tables, bars and foldable parts.

Text from models, tools and documents is shown as plain text. Colours derive from the notebook's own text colour, so
that an output is readable on light and dark pages. The HTML does not refer to scripts or other resources.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from typing import Final

from pagantic_common.domain.text.terminal import plain_text

MAX_TEXT_CHARS: Final = 20_000
MAX_CELL_CHARS: Final = 1_000
# Characters that change the direction of the surrounding text.
_STEERING = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
# Notebooks style the content of tables themselves; the repeated class overrides those styles.
_STYLE: Final = """<style>
.pagantic.pagantic {font: 13px/1.5 system-ui, sans-serif; color: inherit; max-width: 76em; text-align: left}
.pagantic.pagantic pre {white-space: pre-wrap; overflow-wrap: anywhere; unicode-bidi: isolate; max-height: 32em;
  overflow: auto; margin: 4px 0; padding: 0; background: none; border: 0; color: inherit; font: inherit}
.pagantic.pagantic pre.code {font: 12px/1.5 ui-monospace, monospace}
.pagantic.pagantic .head {font-weight: 600}
.pagantic.pagantic .less {font-size: 12px; opacity: .8}
.pagantic.pagantic .error {border-left: 4px solid #d64545; padding-left: 8px; margin: 4px 0}
.pagantic.pagantic blockquote {border-left: 4px solid #b8741a; padding-left: 8px; margin: 4px 0 8px; color: inherit}
.pagantic.pagantic mark {background: #d9902040; color: inherit; border-bottom: 2px solid #b8741a}
.pagantic.pagantic summary {cursor: pointer}
.pagantic.pagantic table {border-collapse: collapse; margin: 4px 0; font: inherit; color: inherit; width: auto}
.pagantic.pagantic :is(td, th) {text-align: left; vertical-align: top; padding: 1px 12px 1px 0; background: none;
  border: 0; white-space: normal; overflow-wrap: anywhere; max-width: 44em}
.pagantic.pagantic .number {text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums}
.pagantic.pagantic .name {white-space: nowrap}
.pagantic.pagantic svg {vertical-align: middle; overflow: visible}
</style>"""


def page(parts: Iterable[str]) -> str:
    """Return an output built from pieces of HTML."""
    return f'<div class="pagantic">{_STYLE}{"".join(parts)}</div>'


def bounded(text: str, max_chars: int = MAX_TEXT_CHARS) -> str:
    """Return `text` without characters that control a terminal or the surrounding text, shortened if it is long."""
    shown = plain(text[:max_chars])
    if len(text) > max_chars:
        shown += f" … ({_cut_words(text, max_chars)})"
    return shown


def plain(text: str) -> str:
    """Return a text without characters that control a terminal or the surrounding text."""
    return _STEERING.sub("\ufffd", plain_text(text))


def _cut_words(text: str, max_chars: int) -> str:
    return f"the first {max_chars:,} of {len(text):,} characters"


def inline(text: str, max_chars: int = MAX_CELL_CHARS) -> str:
    """Return the HTML of a text to show within a line."""
    return f"<bdi>{escape(bounded(text, max_chars))}</bdi>"


def block(text: str, kind: str = "") -> str:
    """Return the HTML of a text of several lines. The kind `code` selects a monospaced font."""
    return f'<pre dir="auto" class="{kind}">{escape(plain(text[:MAX_TEXT_CHARS]))}</pre>{cut_line(text)}'


def cut_line(text: str) -> str:
    """Return an HTML line that reports a shortened text, or an empty string for an unshortened text.

    The line is below the scrolling text.
    """
    if len(text) <= MAX_TEXT_CHARS:
        return ""
    return f'<div class="less">{_cut_words(text, MAX_TEXT_CHARS)}</div>'


def folded(summary: str, body: str) -> str:
    """Return the HTML of a part that shows its body after a click on its summary. Both arguments are HTML."""
    return f"<details><summary>{summary}</summary>{body}</details>"


def bar(share: float, colour: str, *, start: float = 0.0, width: int = 160) -> str:
    """Return the HTML of a bar from `start` over `share` of its full width, both from 0 to 1.

    A bar is at least 2 pixels long.
    """
    length = max(2.0, min(share, 1.0) * width)
    left = min(max(start, 0.0) * width, width - length)
    return (
        f'<svg width="{width}" height="10" viewBox="0 0 {width} 10" aria-hidden="true">'
        f'<rect width="{width}" height="10" rx="2" fill="currentColor" opacity=".1"/>'
        f'<rect x="{left:.1f}" width="{length:.1f}" height="10" rx="2" fill="{colour}"/></svg>'
    )


def table(rows: Iterable[str], *, head: str = "") -> str:
    """Return a table built from HTML rows."""
    header = f"<thead>{head}</thead>" if head else ""
    return f"<table>{header}<tbody>{''.join(rows)}</tbody></table>"
