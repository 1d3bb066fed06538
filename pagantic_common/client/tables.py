"""Execution events as rows for people, and tables of what the system keeps."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pagantic.orchestrator.v1 import event_pb2, execution_pb2, session_pb2, usage_total_pb2
from pagantic_common.client.descriptions import describe_event, error_code_name, state_name
from pagantic_common.domain.text.terminal import plain_text

COLUMNS = ("seq", "+ms", "layer", "action", "what", "caused by", "took ms", "error")
NARROW_COLUMNS = ("seq", "+ms", "layer: action", "what, and its cause", "took ms", "error")
PIPE_COLUMNS = 160
WIDE_COLUMNS = 110


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """One event in words; `offset_ms` counts from the first event, `duration_ms` is None for what has no length."""

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
        """The row's text, in the order of COLUMNS."""
        took = "" if self.duration_ms is None else f"{self.duration_ms:.1f}"
        offset = f"{self.offset_ms:.0f}"
        return (str(self.sequence), offset, self.layer, self.action, self.what, self.caused_by, took, self.error)

    @property
    def narrow_cells(self) -> tuple[str, ...]:
        """The row's text, in the order of NARROW_COLUMNS; an action without a layer is the orchestrator's."""
        sequence, offset, layer, action, what, caused_by, took, error = self.cells
        is_told = layer in ("", "orchestrator") or action.startswith(layer)
        cause = f"(caused by {caused_by})" if caused_by else ""
        return (sequence, offset, action if is_told else f"{layer}: {action}", f"{what} {cause}".strip(), took, error)


def timeline_rows(events: Iterable[event_pb2.ExecutionEvent]) -> list[TimelineRow]:
    """Return a row for each event."""
    rows: list[TimelineRow] = []
    started_ns: int | None = None
    for event in events:
        at_ns = event.timestamp.ToNanoseconds()
        started_ns = at_ns if started_ns is None else started_ns
        rows.append(
            TimelineRow(
                sequence=event.sequence,
                offset_ms=(at_ns - started_ns) / 1e6,
                layer=event.layer,
                action=event.action,
                what=describe_event(event),
                caused_by=event.correlation.caused_by,
                duration_ms=event.duration.ToNanoseconds() / 1e6 if event.HasField("duration") else None,
                error=error_code_name(event.error.code) if event.HasField("error") else "",
            )
        )
    return rows


def timeline_table(events: Sequence[event_pb2.ExecutionEvent], *, width: int = PIPE_COLUMNS) -> Table:
    """Return the timeline as a table for `width` columns.

    The column of errors is left out when there is none. Where there is little room, the layer stands with the action,
    and the cause with what happened.
    """
    rows = timeline_rows(events)
    has_errors = any(row.error for row in rows)
    is_narrow = width < WIDE_COLUMNS
    columns = [column for column in (NARROW_COLUMNS if is_narrow else COLUMNS) if has_errors or column != "error"]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        justify: Literal["left", "right"] = "right" if column in {"seq", "+ms", "took ms"} else "left"
        is_fixed = column not in {"what", NARROW_COLUMNS[3], "error"}
        style = "red" if column == "error" else None
        table.add_column(column, justify=justify, overflow="fold", no_wrap=is_fixed, style=style)
    for row in rows:
        cells = row.narrow_cells if is_narrow else row.cells
        table.add_row(*map(cell, cells[: len(columns)]))
    return table


def usage_table(totals: Sequence[usage_total_pb2.UsageTotal]) -> Table:
    """Return a table with a row for each session and model; without a price there is no cost."""
    table = list_table(
        ("session", "model", "requests", "prompt", "cached", "output", "USD"),
        right={"requests", "prompt", "cached", "output", "USD"},
    )
    for total in totals:
        counts = (total.requests, total.prompt_tokens, total.cached_prompt_tokens, total.output_tokens)
        cost = f"{total.cost_usd:.4f}" if total.cost_usd else "-"
        table.add_row(cell(total.session_id or "(none)"), cell(total.model), *map(str, counts), cost)
    return table


def executions_table(executions: Iterable[execution_pb2.Execution], *, now_s: float) -> Table:
    """Return a table with a row for each execution."""
    table = list_table(("request id", "mode", "state", "age", "session"), right={"age"})
    for one in executions:
        mode = execution_pb2.Mode.Name(one.mode).removeprefix("MODE_")
        state = state_name(one.state.current) + (" (interrupted)" if one.interrupted else "")
        age = describe_age(now_s - one.started_at.ToNanoseconds() / 1e9)
        table.add_row(cell(one.request_id), mode, state, age, cell(one.session_id or "(none)"))
    return table


def sessions_table(sessions: Iterable[session_pb2.Session], *, now_s: float) -> Table:
    """Return a table with a row for each conversation."""
    table = list_table(("session", "messages", "last used"), right={"messages", "last used"})
    for one in sessions:
        used = f"{describe_age(now_s - one.updated_at.ToNanoseconds() / 1e9)} ago"
        table.add_row(cell(one.session_id), str(one.message_count), used)
    return table


def describe_age(seconds: float) -> str:
    """Return a length of time in its largest unit, as in `5 min`."""
    for unit, length_s in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length_s:
            return f"{seconds / length_s:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def list_table(columns: Sequence[str], *, right: Container[str] = ()) -> Table:
    """Return an empty table with these columns, those in `right` aligned to the right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    return table


def cell(text: str) -> Text:
    """Return a text as it is: nothing in it is markup or steers the terminal."""
    return Text(plain_text(text))


def wide_console(*, stderr: bool = False) -> Console:
    """Return a console that does not cut tables down to 80 columns when it writes to a pipe or a file."""
    console = Console(highlight=False, stderr=stderr)
    if not console.is_terminal:
        console.width = max(console.width, PIPE_COLUMNS)
    return console
