"""Turns events of an execution into progress reports. The protocol requires that the reported progress increases."""

from __future__ import annotations

from dataclasses import dataclass

from pagantic.common.v1 import message_pb2
from pagantic.orchestrator.v1 import event_pb2
from pagantic_common.client import AnswerState, DeltaKind
from pagantic_common.client.descriptions import count_of
from pagantic_common.client.event_descriptions import describe_event
from pagantic_common.domain.text.terminal import plain_text

REPORT_EVERY_CHARACTERS = 80
MAX_MESSAGE_CHARACTERS = 300
_STAGES = (
    *("tool_start", "tool_end", "step_start", "step_end", "vote_cast", "context_retrieved", "attempt_discarded"),
    *("approval_requested", "approval_resolved", "wait_began", "wait_ended", "context_weighed"),
)


@dataclass(frozen=True, slots=True)
class Report:
    """The amount of completed work, the total if known, and the current activity as text."""

    progress: float
    total: float | None
    message: str


class ExecutionProgress:
    """Counts the completed work of an execution: parts of its answer, steps, tool calls and votes."""

    def __init__(self) -> None:
        self._state = AnswerState()
        self._reports = 0
        self._characters = 0
        self._reported_characters = 0

    def report_of(self, event: event_pb2.ExecutionEvent) -> Report | None:
        """Return the report for an event, or None if the event needs no report."""
        for delta in self._state.take(event):
            if delta.kind in (DeltaKind.TEXT, DeltaKind.REASONING):
                return self._answering(len(delta.text))
        if event.HasField("tool_progress"):
            return self._next(f"{event.tool_call_id}: {describe_event(event)}")
        if event.WhichOneof("event") in _STAGES:
            return self._next(f"{event.action}: {describe_event(event)}")
        return None

    def _answering(self, characters: int) -> Report | None:
        is_first = self._characters == 0
        self._characters += characters
        if not is_first and self._characters - self._reported_characters < REPORT_EVERY_CHARACTERS:
            return None
        self._reported_characters = self._characters
        return self._next(f"answering: {count_of(self._characters, 'character')}")

    def _next(self, message: str) -> Report:
        self._reports += 1
        return Report(self._reports, None, plain_text(message)[:MAX_MESSAGE_CHARACTERS])


class ToolProgress:
    """Forwards the progress that a tool reports."""

    def __init__(self) -> None:
        self._progress = float("-inf")

    def report_of(self, event: event_pb2.ExecutionEvent) -> Report | None:
        """Return the report for an event, or None if the event has no report or its progress does not increase."""
        if not event.HasField("tool_progress"):
            return None
        progress: message_pb2.ToolProgress = event.tool_progress
        if not progress.progress > self._progress:
            return None
        self._progress = progress.progress
        total = progress.total if progress.HasField("total") else None
        return Report(progress.progress, total, plain_text(progress.message)[:MAX_MESSAGE_CHARACTERS])
