"""An answer as the terminal program shows it: the state, the timeline and the notes below the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pagantic.inference.v1 import generation_pb2
from pagantic.orchestrator.v1 import event_pb2, execution_pb2
from pagantic_common.client import AnswerState, Delta
from pagantic_common.client.descriptions import TOO_LARGE, TRUNCATED, describe_citation
from pagantic_common.client.event_descriptions import describe_event

MAX_EVENTS: Final = 2_000


class Answer(AnswerState):
    """The state of an answer.

    Attributes:
    request_id: The id of the execution, or empty if it is unknown.
    notes: Lines below the answer.
    events: The first stored event and the latest events.
    version: Changes whenever the displayed content changes.
    """

    def __init__(self, request_id: str) -> None:
        super().__init__()
        self.request_id = request_id
        self.notes: list[str] = []
        self.events: list[event_pb2.ExecutionEvent] = []
        self.version = 0

    def take(self, event: event_pb2.ExecutionEvent) -> Sequence[Delta]:
        """Update the state from the next event."""
        self.version += 1
        before = self.sequence
        deltas = super().take(event)
        if event.HasField("approval_resolved"):
            self.notes.append(describe_event(event))
        elif event.HasField("attempt_discarded"):
            self.notes.append(f"attempt discarded: {describe_event(event)}")
        if self.sequence > before:
            self.events.append(event)
            if len(self.events) > MAX_EVENTS:
                del self.events[1]  # The first event is kept, because times are relative to it.
        return deltas

    def end(self, response: execution_pb2.SystemResponse) -> None:
        """Update the state from the final response."""
        self.version += 1
        super().end(response)
        self.notes += notes_of(response)


def notes_of(response: execution_pb2.SystemResponse) -> list[str]:
    """Return the notes below an answer: its citations, a note if the answer was truncated, and its warnings."""
    notes = [describe_citation(citation) for citation in response.citations]
    is_too_large = any(warning.code == TOO_LARGE for warning in response.warnings)
    was_cut = response.finish_reason == generation_pb2.FINISH_REASON_LENGTH and not response.HasField("error")
    if was_cut and not is_too_large:
        notes.append("cut at its limit of tokens: the options (Ctrl+G) raise it")
    # The system's warning about a truncated answer is omitted, because the note above says the same without its code.
    warnings = [warning.message for warning in response.warnings if warning.code != TRUNCATED]
    texts = dict.fromkeys([*warnings, *response.validation.warnings])
    return notes + [f"warning: {text}" for text in texts if text != response.error.message]
