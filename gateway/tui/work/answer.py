"""An answer as its events tell it. Knows nothing of connections and of the screen."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from pagantic.inference.v1 import generation_pb2
from pagantic.orchestrator.v1 import approval_pb2, event_pb2, execution_pb2
from pagantic_common.client.descriptions import TOO_LARGE, TRUNCATED, describe_citation, error_code_name
from pagantic_common.client.event_descriptions import describe_event
from pagantic_common.codec.errors import failure_from_proto
from pagantic_common.domain.errors import ErrorCode, PaganticError
from pagantic_common.rpc.status import error_of

# Pieces of text and progress stream by; the others are stored, and are the timeline.
STREAMED: Final = frozenset({"content_delta", "reasoning_delta", "tool_call_delta", "tool_progress"})
MAX_EVENTS: Final = 2_000
MAX_SHOWN: Final = 100_000


@dataclass
class TextPart:
    """A text, between calls of tools. Its first characters are kept, for the screen; of the others, their number."""

    text: str = ""
    left_out: int = 0

    @classmethod
    def of(cls, text: str) -> TextPart:
        """Return a part with a text."""
        made = cls()
        made.add(text)
        return made

    @property
    def length(self) -> int:
        """The characters of the whole text."""
        return len(self.text) + self.left_out

    def add(self, text: str) -> None:
        """Continue the text."""
        kept = text[: MAX_SHOWN - len(self.text)]
        self.text += kept
        self.left_out += len(text) - len(kept)

    def cut(self, length: int) -> None:
        """Keep the first characters."""
        self.left_out = max(0, length - MAX_SHOWN)
        self.text = self.text[:length]


@dataclass
class CallPart:
    """A call of a tool: its arguments and its result are empty until they are known."""

    call_id: str
    name: str
    arguments_json: str = ""
    result: str = ""
    failure: str = ""
    progress: str = ""
    has_ended: bool = False


@dataclass
class Answer:
    """One answer. `version` changes with everything that is shown of it.

    `sequence` is that of the last stored event. Who follows the execution from there on gets the texts after it again,
    so `rewind` forgets them first.
    """

    request_id: str
    parts: list[TextPart | CallPart] = field(default_factory=list)
    reasoning: TextPart = field(default_factory=TextPart)
    notes: list[str] = field(default_factory=list)
    events: list[event_pb2.ExecutionEvent] = field(default_factory=list)
    waiting: dict[str, approval_pb2.Approval] = field(default_factory=dict)
    response: execution_pb2.SystemResponse | None = None
    sequence: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    version: int = 0
    _stored: tuple[int, int, int] = (0, 0, 0)

    @property
    def text(self) -> str:
        """The texts of all parts."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def error(self) -> PaganticError | None:
        """The failure with which it ended; None without one."""
        if self.response is None or not self.response.HasField("error"):
            return None
        return error_of(failure_from_proto(self.response.error))

    @property
    def was_stopped(self) -> bool:
        """Whether somebody cancelled it."""
        return self.error is not None and self.error.code is ErrorCode.CANCELLED_SIGNAL

    def usage(self, window: int) -> tuple[int, int]:
        """Return the tokens that the newest inference took, and the context window: a known one, or the model's."""
        if self.response is not None and (usage := self.response.token_usage).context_window:
            return usage.context_tokens, usage.context_window
        return self.tokens_in + self.tokens_out, window

    def take(self, event: event_pb2.ExecutionEvent) -> None:
        """Read the next event."""
        self.version += 1
        kind = event.WhichOneof("event") or ""  # empty for an event of a newer version
        if kind in _TAKES:
            _TAKES[kind](self, event)
        if kind not in STREAMED and event.sequence > self.sequence:
            self.sequence = event.sequence
            self._note_stored(event)

    def rewind(self) -> None:
        """Forget the texts after the last stored event."""
        self.version += 1
        count, length, reasoning = self._stored
        del self.parts[count:]
        if self.parts and isinstance(last := self.parts[-1], TextPart):
            last.cut(length)
        self.reasoning.cut(reasoning)

    def _note_stored(self, event: event_pb2.ExecutionEvent) -> None:
        self.events.append(event)
        if len(self.events) > MAX_EVENTS:
            del self.events[1]  # the first one begins the time
        length = 0
        if self.parts and isinstance(last := self.parts[-1], TextPart):
            length = last.length
        self._stored = (len(self.parts), length, self.reasoning.length)

    def _write(self, event: event_pb2.ExecutionEvent) -> None:
        self._last_text().add(event.content_delta.text)

    def _last_text(self) -> TextPart:
        if not self.parts or not isinstance(self.parts[-1], TextPart):
            self.parts.append(TextPart())
        last = self.parts[-1]
        assert isinstance(last, TextPart)  # noqa: S101 - for the type checker
        return last

    def _reason(self, event: event_pb2.ExecutionEvent) -> None:
        self.reasoning.add(event.reasoning_delta.text)

    def _call(self, event: event_pb2.ExecutionEvent) -> None:
        start = event.tool_start
        part = self._call_of(start.tool_call_id, start.tool_name)
        part.has_ended = False

    def _progress(self, event: event_pb2.ExecutionEvent) -> None:
        for part in self._calls():
            if part.call_id == event.tool_call_id:
                part.progress = describe_event(event)

    def _end_call(self, event: event_pb2.ExecutionEvent) -> None:
        end = event.tool_end
        part = self._call_of(end.tool_call_id, end.tool_name)
        part.has_ended = True
        part.progress = ""
        if not end.success:
            part.failure = error_code_name(end.error_code)

    def _wait(self, event: event_pb2.ExecutionEvent) -> None:
        approval = event.approval_requested.approval
        self.waiting[approval.tool_call_id] = approval
        part = self._call_of(approval.tool_call_id, approval.tool_name)
        part.arguments_json = approval.arguments_json

    def _resolve(self, event: event_pb2.ExecutionEvent) -> None:
        approval = event.approval_resolved.approval
        self.waiting.pop(approval.tool_call_id, None)
        part = self._call_of(approval.tool_call_id, approval.tool_name)
        part.arguments_json = approval.resolution.arguments_json or part.arguments_json
        self.notes.append(describe_event(event))

    def _discard(self, event: event_pb2.ExecutionEvent) -> None:
        """Forget the texts of an attempt; its calls were made, and are not made again."""
        self.parts = [*self._calls()]
        self.reasoning = TextPart()
        self.notes.append(f"attempt discarded: {describe_event(event)}")

    def _count(self, event: event_pb2.ExecutionEvent) -> None:
        self.tokens_in = event.inference_end.tokens_in
        self.tokens_out = event.inference_end.tokens_out

    def _complete(self, event: event_pb2.ExecutionEvent) -> None:
        self.end(event.completed.response)

    def end(self, response: execution_pb2.SystemResponse) -> None:
        """Take the response: what it says of texts and calls wins over what is known."""
        self.response = response
        self.version += 1
        self.waiting.clear()
        streamed = len(self.parts) - 1
        for record in response.tool_calls_made:
            self._note_record(record)
        if response.content or not response.HasField("error"):  # a failure leaves what was written before it
            self._take_content(response.content, streamed)
        if response.reasoning:
            self.reasoning = TextPart.of(response.reasoning)
        self.notes += notes_of(response)

    def _take_content(self, content: str, at: int) -> None:
        """Put the answer's text in place of what streamed of it, the part at a place, which a guard may have redacted.

        A part that is no text belongs to a call before the answer, and nothing of the answer streamed.
        """
        if at >= 0 and isinstance(self.parts[at], TextPart):
            if self.parts[at] == TextPart.of(content):
                return
            del self.parts[at]
        if content:
            self.parts.append(TextPart.of(content))

    def _note_record(self, record: execution_pb2.ToolCallRecord) -> None:
        part = self._call_of(record.id, record.name)
        part.arguments_json = record.arguments_json
        part.result = record.result
        part.has_ended = True
        part.failure = ""
        if record.is_error:
            part.failure = error_code_name(record.error_code)

    def _calls(self) -> Iterable[CallPart]:
        return (part for part in self.parts if isinstance(part, CallPart))

    def _call_of(self, call_id: str, name: str) -> CallPart:
        for part in self._calls():
            if part.call_id == call_id:
                return part
        made = CallPart(call_id, name)
        self.parts.append(made)
        return made


def notes_of(response: execution_pb2.SystemResponse) -> list[str]:
    """Return what is to be said below an answer: its citations, that it was cut, and its warnings."""
    notes = [describe_citation(citation) for citation in response.citations]
    is_too_large = any(warning.code == TOO_LARGE for warning in response.warnings)
    was_cut = response.finish_reason == generation_pb2.FINISH_REASON_LENGTH and not response.HasField("error")
    if was_cut and not is_too_large:
        notes.append("cut at its limit of tokens: the options (Ctrl+G) raise it")
    # What the system says of a cut answer is the note above, with a name that only programs use.
    warnings = [warning.message for warning in response.warnings if warning.code != TRUNCATED]
    texts = dict.fromkeys([*warnings, *response.validation.warnings])
    return notes + [f"warning: {text}" for text in texts if text != response.error.message]


_TAKES: Final[dict[str, Callable[[Answer, event_pb2.ExecutionEvent], None]]] = {
    "content_delta": Answer._write,  # noqa: SLF001 - the table is a part of the class
    "reasoning_delta": Answer._reason,  # noqa: SLF001
    "tool_start": Answer._call,  # noqa: SLF001
    "tool_progress": Answer._progress,  # noqa: SLF001
    "tool_end": Answer._end_call,  # noqa: SLF001
    "approval_requested": Answer._wait,  # noqa: SLF001
    "approval_resolved": Answer._resolve,  # noqa: SLF001
    "attempt_discarded": Answer._discard,  # noqa: SLF001
    "inference_end": Answer._count,  # noqa: SLF001
    "completed": Answer._complete,  # noqa: SLF001
}
