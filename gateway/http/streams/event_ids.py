"""Assigns ids to the native server-sent events, so that a lost stream can resume. The module is pure.

The id of a stored event is its sequence number. The id of a delta consists of the sequence number of the previous
stored event and the number of characters streamed since then. It therefore identifies a position in the text, however
the text was split into deltas.
"""

from __future__ import annotations

import re
from typing import Any

from pagantic.orchestrator.v1 import event_pb2
from pagantic_common.domain.errors import InvalidRequest

_ID = re.compile(r"(\d{1,18})(?:\.(\d{1,18}))?")
# Maps each kind of delta to the field that contains its text.
_TEXTS = {"content_delta": "text", "reasoning_delta": "text", "tool_call_delta": "arguments_json"}


class EventIds:
    """Numbers the events of a stream, and omits content that the client already has.

    Args:
    last: The id of the client's last event, or empty if the client has no event. Raises InvalidRequest if the id is
        invalid.
    """

    def __init__(self, last: str = "") -> None:
        match = _ID.fullmatch(last or "0")
        if match is None:
            raise InvalidRequest(f"Last-Event-ID is {last[:64]!r}: send the id of an event of this stream")
        self.after_sequence = int(match[1])
        self._seen = int(match[2] or 0)  # The number of text characters after that event.
        self._sequence, self._count = self.after_sequence, 0

    def number(self, event: event_pb2.ExecutionEvent) -> str:
        """Return the id of an event, or an empty string if the client already has the event's whole content."""
        if event.sequence != self._sequence:
            self._sequence, self._count = event.sequence, 0
        kind = event.WhichOneof("event") or ""
        if kind in _TEXTS and not self._take(getattr(event, kind), _TEXTS[kind]):
            return ""
        if self._count:
            return f"{event.sequence}.{self._count}"
        return str(event.sequence)

    def _take(self, delta: Any, field: str) -> bool:
        """Count the text of a delta, cut the part that the client already has, and return whether any content is left.

        The name at the start of a call counts as one character.
        """
        text = getattr(delta, field)
        head = int(field == "arguments_json" and bool(delta.name))
        begin, self._count = self._count, self._count + head + len(text)
        had = self._seen - begin
        if self._sequence != self.after_sequence or had <= 0:
            return True
        if head:
            delta.ClearField("name")
            delta.ClearField("id")
        setattr(delta, field, text[had - head :])
        return had < head + len(text)
