"""The pane with the growing timeline of the newest execution, in the form of `pagantic timeline`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text
from textual import events
from textual.containers import VerticalScroll
from textual.widgets import Static

from pagantic.orchestrator.v1 import event_pb2
from pagantic_common.client.tables import TimelineRow, rows_table, timeline_rows
from pagantic_common.domain.text.terminal import visible_text

MAX_ROWS: Final = 200
MAX_CELL_CHARS: Final = 300
_SCROLL_BAR_COLUMNS: Final = 2


class TimelinePane(VerticalScroll):
    """Shows the latest events of an execution. The table is drawn only while it is visible."""

    def __init__(self) -> None:
        super().__init__(id="timeline")
        self.border_title = "timeline"
        self._table = Static("", markup=False)
        self._events: Sequence[event_pb2.ExecutionEvent] = ()
        self._drawn: tuple[str, int, int, int] = ("", 0, 0, 0)

    def on_mount(self) -> None:
        """Keep the latest event in view."""
        self.mount(self._table)
        self.anchor()

    def on_resize(self, _event: events.Resize) -> None:
        """Draw the table for the new width."""
        self.draw()

    def show(self, timeline: Sequence[event_pb2.ExecutionEvent]) -> None:
        """Show the events of an execution."""
        self._events = timeline
        self.draw()

    def draw(self) -> None:
        """Draw the table, unless it is hidden or up to date."""
        if not self.display or not self.size.width:
            return
        request_id, sequence = "", 0
        if self._events:
            request_id = self._events[0].correlation.request_id
            sequence = self._events[-1].sequence
        drawn = (request_id, sequence, len(self._events), self.size.width)
        if drawn != self._drawn:
            self._drawn = drawn
            self._table.update(self._rendered(self.size.width - _SCROLL_BAR_COLUMNS))

    def _rendered(self, width: int) -> RenderableType:
        if not self._events:
            return Text("No execution yet: send a message.", style="dim")
        table = rows_table([_visible(row) for row in latest_rows(self._events)], width=width)
        earlier = max(self._events[-1].sequence, len(self._events)) - MAX_ROWS  # Only some events are kept.
        if earlier <= 0:
            return table
        return Group(Text(f"{earlier:,} earlier events: `pagantic timeline` shows all", style="dim"), table)


def latest_rows(timeline: Sequence[event_pb2.ExecutionEvent]) -> list[TimelineRow]:
    """Return the rows of the latest events, with times relative to the first event."""
    if len(timeline) <= MAX_ROWS:
        return timeline_rows(timeline)
    return timeline_rows([timeline[0], *timeline[-MAX_ROWS:]])[1:]


def _visible(row: TimelineRow) -> TimelineRow:
    """Return a row whose texts are shortened, with control characters made visible."""
    return replace(
        row,
        layer=_bounded(row.layer),
        action=_bounded(row.action),
        what=_bounded(row.what),
        caused_by=_bounded(row.caused_by),
        error=_bounded(row.error),
    )


def _bounded(text: str) -> str:
    if len(text) > MAX_CELL_CHARS:
        text = f"{text[:MAX_CELL_CHARS]} …"
    return visible_text(text)
