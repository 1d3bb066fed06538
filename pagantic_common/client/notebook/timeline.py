"""Shows the timeline of an execution in a notebook: a row with a bar for each event."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from rich.console import Console

from pagantic.orchestrator.v1 import event_pb2
from pagantic_common.client.descriptions import count_of
from pagantic_common.client.notebook.markup import MAX_CELL_CHARS, bar, bounded, inline, page, table
from pagantic_common.client.tables import PIPE_COLUMNS, TimelineRow, rows_table, timeline_rows

MAX_ROWS: Final = 1_000
LATEST_ROWS: Final = 12
# Each colour is visible on white and black pages. The name of the service is next to its bar.
COLOURS: Final = {
    "orchestrator": "#7d8590",
    "inference": "#3b82d4",
    "constraint": "#8a6fd8",
    "context": "#2a9d74",
    "rerank": "#1b95a8",
    "tools": "#b8741a",
}
ERROR_COLOUR: Final = "#d64545"
_HEAD: Final = (
    '<tr><th class="number">seq</th><th class="number">+ms</th><th>service</th><th>action</th><th>what</th>'
    '<th>from start to end</th><th class="number">took ms</th></tr>'
)


class Timeline(list[event_pb2.ExecutionEvent]):
    """The events of an execution, in sequence.

    A notebook shows the events as a picture; `str` returns the same picture as text.
    """

    def __str__(self) -> str:
        rows, left_out = _bounded_rows(self)
        written = io.StringIO()
        # In a notebook, rich would display the table itself.
        console = Console(width=PIPE_COLUMNS, file=written, color_system=None, force_jupyter=False)
        console.print(rows_table(rows, width=PIPE_COLUMNS))
        return written.getvalue() + left_out

    def _repr_html_(self) -> str:
        return timeline_html(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: ARG002 - IPython calls it so
        # To print a list as text, IPython calls only this method.
        printer.text(str(self))


def timeline_html(events: Sequence[event_pb2.ExecutionEvent]) -> str:
    """Return the picture of a timeline as HTML."""
    return _picture(events, *_bounded_rows(events))


def latest_html(events: Sequence[event_pb2.ExecutionEvent]) -> str:
    """Return the picture of the latest events as HTML, with times since the first event. `events` must not be empty."""
    latest = timeline_rows([events[0], *events[-LATEST_ROWS:]])[1:]
    return _picture(events, list(map(_bounded_row, latest)), "")


def _picture(events: Sequence[event_pb2.ExecutionEvent], rows: Sequence[TimelineRow], left_out: str) -> str:
    whole_ms = max((row.offset_ms for row in rows), default=0.0)
    head = f'<div class="head">Timeline: {count_of(len(events), "event")} in {whole_ms:,.0f} ms</div>'
    drawn = table((_row_html(row, whole_ms) for row in rows), head=_HEAD)
    return page([head, drawn, f'<div class="less">{left_out}</div>'])


def _bounded_rows(events: Sequence[event_pb2.ExecutionEvent]) -> tuple[list[TimelineRow], str]:
    """Return the first rows of a timeline with bounded texts, and a line about the omitted rows or an empty string."""
    rows = [_bounded_row(row) for row in timeline_rows(events[:MAX_ROWS])]
    if len(events) <= MAX_ROWS:
        return rows, ""
    return rows, f"{len(events) - MAX_ROWS:,} later events are not shown: pagantic timeline shows them"


def _bounded_row(row: TimelineRow) -> TimelineRow:
    return replace(
        row,
        layer=bounded(row.layer, MAX_CELL_CHARS),
        action=bounded(row.action, MAX_CELL_CHARS),
        what=bounded(row.what, MAX_CELL_CHARS),
        caused_by=bounded(row.caused_by, MAX_CELL_CHARS),
    )


def _row_html(row: TimelineRow, whole_ms: float) -> str:
    colour = COLOURS.get(row.layer, COLOURS["orchestrator"])
    if row.error:
        colour = ERROR_COLOUR
    what = inline(row.what)
    if row.caused_by:
        what += f' <span class="less">caused by {inline(row.caused_by)}</span>'
    if row.error:
        what += f" <strong>✗ {inline(row.error)}</strong>"
    return (
        f'<tr><td class="number">{row.sequence}</td><td class="number">{row.offset_ms:.0f}</td>'
        f'<td class="name">{inline(row.layer)}</td><td class="name">{inline(row.action)}</td><td>{what}</td>'
        f'<td>{_bar_of(row, whole_ms, colour)}</td><td class="number">{row.cells[-2]}</td></tr>'
    )


def _bar_of(row: TimelineRow, whole_ms: float, colour: str) -> str:
    """Return the HTML of an event's bar, whose length is the duration. An event is stamped when it ends."""
    if whole_ms <= 0:
        return bar(0.0, colour, width=220)
    took_ms = row.duration_ms or 0.0
    return bar(took_ms / whole_ms, colour, start=(row.offset_ms - took_ms) / whole_ms, width=220)
