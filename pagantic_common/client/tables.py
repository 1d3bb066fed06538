"""Tables for people to read: the events of an execution, stored executions, conversations and usage."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pagantic.orchestrator.v1 import event_pb2, execution_pb2, session_pb2, usage_total_pb2
from pagantic_common.client.descriptions import error_code_name, mode_name, state_name
from pagantic_common.client.event_descriptions import describe_event
from pagantic_common.domain.text.terminal import plain_text

COLUMNS: tuple[str, ...] = ("seq", "+ms", "layer", "action", "what", "caused by", "took ms", "error")
NARROW_COLUMNS: tuple[str, ...] = ("seq", "+ms", "layer: action", "what, and its cause", "took ms", "error")
_NUMBERS = frozenset({"seq", "+ms", "took ms"})
_WRAPPED = frozenset({"what", "what, and its cause", "error"})
_STYLES = {"error": "red"}
PIPE_COLUMNS = 160
WIDE_COLUMNS = 110


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """An event as a row of the timeline's table.

    `offset_ms` counts from the first event, and `duration_ms` is None if the event has no duration.
    """

    sequence: int
    offset_ms: float
    layer: str
    action: str
    what: str
    caused_by: str
    duration_ms: float | None
    error: str

    @property
    def cells(self) -> tuple[str, ...]:
        """The texts of the row's cells, in the order of COLUMNS."""
        took = ""
        if self.duration_ms is not None:
            took = f"{self.duration_ms:.1f}"
        offset = f"{self.offset_ms:.0f}"
        return (str(self.sequence), offset, self.layer, self.action, self.what, self.caused_by, took, self.error)

    @property
    def narrow_cells(self) -> tuple[str, ...]:
        """The texts of the row's cells, in the order of NARROW_COLUMNS.

        An action without a layer belongs to the orchestrator.
        """
        sequence, offset, layer, action, what, caused_by, took, error = self.cells
        if layer not in ("", "orchestrator") and not action.startswith(layer):
            action = f"{layer}: {action}"
        if caused_by:
            what = f"{what} (caused by {caused_by})"
        return (sequence, offset, action, what.strip(), took, error)


def timeline_rows(events: Sequence[event_pb2.ExecutionEvent]) -> list[TimelineRow]:
    """Return a row for each event."""
    return [_timeline_row(event, first=events[0]) for event in events]


def _timeline_row(event: event_pb2.ExecutionEvent, *, first: event_pb2.ExecutionEvent) -> TimelineRow:
    duration_ms: float | None = None
    if event.HasField("duration"):
        duration_ms = event.duration.ToNanoseconds() / 1e6
    error = ""
    if event.HasField("error"):
        error = error_code_name(event.error.code)
    return TimelineRow(
        sequence=event.sequence,
        offset_ms=(event.timestamp.ToNanoseconds() - first.timestamp.ToNanoseconds()) / 1e6,
        layer=event.layer,
        action=event.action,
        what=describe_event(event),
        caused_by=event.correlation.caused_by,
        duration_ms=duration_ms,
        error=error,
    )


def timeline_table(events: Sequence[event_pb2.ExecutionEvent], *, width: int = PIPE_COLUMNS) -> Table:
    """Return the timeline as a table for `width` columns, as `rows_table` does."""
    return rows_table(timeline_rows(events), width=width)


def rows_table(rows: Sequence[TimelineRow], *, width: int = PIPE_COLUMNS) -> Table:
    """Return the rows of a timeline as a table for `width` columns.

    If no event has an error, the error column is omitted. A narrow table has a column for layer and action, and a
    column for the details and the cause.
    """
    columns = COLUMNS
    cells = [row.cells for row in rows]
    if width < WIDE_COLUMNS:
        columns = NARROW_COLUMNS
        cells = [row.narrow_cells for row in rows]
    if not any(row.error for row in rows):
        columns = columns[:-1]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        justify, is_wrapped = _justify(column, _NUMBERS), column in _WRAPPED
        table.add_column(column, justify=justify, overflow="fold", no_wrap=not is_wrapped, style=_STYLES.get(column))
    for texts in cells:
        table.add_row(*map(cell, texts[: len(columns)]))
    return table


def usage_table(totals: Sequence[usage_total_pb2.UsageTotal], keys: Sequence[str] = ()) -> Table:
    """Return a table with a row for each total and a column for each of its keys, as `get_usage` names them.

    By default, the keys are session and model, and subject if a total has a subject. The cost is `-` without a price.
    """
    keys = keys or ("session", "model", *(["subject"] if any(total.subject for total in totals) else []))
    names = [key for key in ("session", "model", "subject") if key in keys]
    numbers = ("requests", "prompt", "cached", "output", "USD")
    table = list_table((*names, *numbers), right=set(numbers))
    for total in totals:
        table.add_row(*_usage_texts(total, names))
    return table


def _usage_texts(total: usage_total_pb2.UsageTotal, names: Sequence[str]) -> list[Text | str]:
    """Return the cells of a total: its keys with these names, its counts and its cost."""
    keys = {"session": total.session_id or "(none)", "model": total.model, "subject": total.subject or "(none)"}
    counts = (total.requests, total.prompt_tokens, total.cached_prompt_tokens, total.output_tokens)
    cost = f"{total.cost_usd:.4f}" if total.cost_usd else "-"
    return [*(cell(keys[name]) for name in names), *map(str, counts), cost]


def executions_table(executions: Iterable[execution_pb2.Execution], *, now_s: float) -> Table:
    """Return a table with a row for each execution."""
    table = list_table(("request id", "mode", "state", "age", "session"), right={"age"})
    for execution in executions:
        state = state_name(execution.state.current)
        if execution.interrupted:
            state += " (interrupted)"
        age = describe_age(now_s - execution.started_at.ToNanoseconds() / 1e9)
        session = cell(execution.session_id or "(none)")
        table.add_row(cell(execution.request_id), mode_name(execution.mode), state, age, session)
    return table


def sessions_table(sessions: Iterable[session_pb2.Session], *, now_s: float) -> Table:
    """Return a table with a row for each conversation."""
    table = list_table(("session", "messages", "last used"), right={"messages", "last used"})
    for session in sessions:
        used = f"{describe_age(now_s - session.updated_at.ToNanoseconds() / 1e9)} ago"
        table.add_row(cell(session.session_id), str(session.message_count), used)
    return table


def describe_age(seconds: float) -> str:
    """Return a duration in its largest whole unit, as in `5 min`."""
    for unit, length_s in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length_s:
            return f"{seconds / length_s:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def list_table(columns: Sequence[str], *, right: Container[str] = ()) -> Table:
    """Return an empty table with these columns. The columns in `right` are right-aligned."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in columns:
        table.add_column(name, justify=_justify(name, right), overflow="fold")
    return table


def _justify(column: str, right: Container[str]) -> Literal["left", "right"]:
    if column in right:
        return "right"
    return "left"


def cell(text: str) -> Text:
    """Return a text without its terminal control sequences, as a cell that does not interpret markup."""
    return Text(plain_text(text))


def wide_console(*, stderr: bool = False) -> Console:
    """Return a console that writes wide tables to a pipe or a file, instead of truncating them at 80 columns."""
    console = Console(highlight=False, stderr=stderr)
    if not console.is_terminal:
        console.width = max(console.width, PIPE_COLUMNS)
    return console
