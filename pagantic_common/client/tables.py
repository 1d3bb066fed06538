"""Execution events as rows for people, and as a rich table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from google.protobuf.message import Message
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pagantic.common.v1 import error_pb2, usage_pb2
from pagantic.constraint.v1 import contract_pb2
from pagantic.inference.v1 import generation_pb2
from pagantic.orchestrator.v1 import event_pb2, execution_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb

COLUMNS = ("seq", "+ms", "layer", "action", "what", "caused by", "took ms", "error")
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

    The column of errors is left out when there is none; where there is little room, layer and cause are.
    """
    rows = timeline_rows(events)
    left_out = set() if any(row.error for row in rows) else {"error"}
    if width < WIDE_COLUMNS:
        left_out |= {"layer", "caused by"}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in COLUMNS:
        if column in left_out:
            continue
        justify: Literal["left", "right"] = "right" if column in {"seq", "+ms", "took ms"} else "left"
        is_fixed = column not in {"what", "error"}
        style = "red" if column == "error" else None
        table.add_column(column, justify=justify, overflow="fold", no_wrap=is_fixed, style=style)
    for row in rows:
        cells = [escape(cell) for column, cell in zip(COLUMNS, row.cells, strict=True) if column not in left_out]
        table.add_row(*cells)
    return table


def usage_table(totals: Sequence[pb.UsageTotal]) -> Table:
    """Return a table with a row for each session and model."""
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("session", "model", "requests", "prompt", "cached", "output", "USD"):
        table.add_column(name, justify="left" if name in ("session", "model") else "right")
    for total in totals:
        counts = (total.requests, total.prompt_tokens, total.cached_prompt_tokens, total.output_tokens)
        names = (escape(total.session_id or "-"), escape(total.model))
        table.add_row(*names, *(str(count) for count in counts), f"{total.cost_usd:.4f}")
    return table


def wide_console(*, stderr: bool = False) -> Console:
    """Return a console that does not cut tables down to 80 columns when it writes to a pipe or a file."""
    console = Console(highlight=False, stderr=stderr)
    if not console.is_terminal:
        console.width = max(console.width, PIPE_COLUMNS)
    return console


def error_code_name(code: error_pb2.ErrorCode.ValueType) -> str:
    """Return a code's name without its prefix; UNSPECIFIED is what is outside the taxonomy."""
    return error_pb2.ErrorCode.Name(code).removeprefix("ERROR_CODE_")


def describe_usage(usage: usage_pb2.TokenUsage) -> str:
    """Return usage as one line."""
    return (
        f"{usage.prompt_tokens} prompt tokens ({usage.cached_prompt_tokens} cached), "
        f"{usage.output_tokens} output tokens, {usage.tokens_per_second:.0f} tokens/s"
    )


def describe_event(event: event_pb2.ExecutionEvent) -> str:  # noqa: C901, PLR0911, PLR0912 - an arm for each kind
    """Return an event's particulars as one line."""
    match event.WhichOneof("event"):
        case "transition":
            return _describe_transition(event.transition)
        case "inference_start":
            start = event.inference_start
            constraint = " schema" * start.schema_present + " grammar" * start.grammar_present
            return f"{start.message_count} messages, {start.tool_defs_count} tools{constraint and ',' + constraint}"
        case "inference_end":
            end = event.inference_end
            reason = generation_pb2.FinishReason.Name(end.finish_reason).removeprefix("FINISH_REASON_").lower()
            return f"{end.tokens_in} in, {end.tokens_out} out, {reason}"
        case "tool_start":
            return f"{event.tool_start.tool_name} ({event.tool_start.tool_call_id})"
        case "tool_end":
            tool_end = event.tool_end
            return f"{tool_end.tool_name} {'ok' if tool_end.success else error_code_name(tool_end.error_code)}"
        case "context_retrieved":
            found = event.context_retrieved
            return f"{found.collection}: {found.chunk_count} chunks, {found.token_count} tokens"
        case "repair_applied":
            return f"{_stage_name(event.repair_applied.stage)}: {'; '.join(event.repair_applied.repairs)}"
        case "validation_stage":
            return _describe_stage(event.validation_stage.report)
        case "vote_cast":
            vote = event.vote_cast
            return f"replica {vote.replica_index}: {'abstains' if vote.abstained else vote.value_hash[:12]}"
        case "step_start":
            return f"{event.step_start.name} ({event.step_start.kind})"
        case "step_end":
            return f"{event.step_end.name} ({event.step_end.kind}) {'ok' if event.step_end.success else 'failed'}"
        case "attempt_discarded":
            return f"attempt {event.attempt_discarded.attempt}: {event.attempt_discarded.reason}"
        case "resumed":
            return f"{event.resumed.completed_steps} steps had ended"
        case "completed":
            return describe_usage(event.completed.response.token_usage)
        case "content_delta" | "reasoning_delta" as kind:
            delta: Message = getattr(event, kind)
            return str(getattr(delta, "text", ""))
        case _:
            return ""


def _describe_transition(transition: event_pb2.LifecycleTransition) -> str:
    target = _state_name(transition.to)
    source = _state_name(getattr(transition, "from"))
    reason = f": {transition.reason}" if transition.reason else ""
    return f"{source} -> {target}{reason}" if source != "UNSPECIFIED" else f"{target}{reason}"


def _describe_stage(report: contract_pb2.StageReport) -> str:
    outcome = contract_pb2.StageOutcome.Name(report.outcome).removeprefix("STAGE_OUTCOME_").lower()
    reasons = "; ".join([*report.reasons, *(violation.message for violation in report.violations)])
    return f"{_stage_name(report.stage)} {outcome}{': ' + reasons if reasons else ''}"


def _stage_name(stage: contract_pb2.Stage.ValueType) -> str:
    return contract_pb2.Stage.Name(stage).removeprefix("STAGE_").lower()


def _state_name(state: execution_pb2.LifecycleState.ValueType) -> str:
    return execution_pb2.LifecycleState.Name(state).removeprefix("LIFECYCLE_STATE_")
