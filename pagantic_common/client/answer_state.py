"""The state of an answer, folded from the events of its execution.

Theory of operation. Stored events have consecutive sequence numbers. Deltas stream between stored events, repeat the
sequence number of the preceding stored event, and are not stored. The state is therefore exact at each stored event;
the text that streamed after a stored event can be dropped and read again.

1. `sequence` is the sequence number of the last stored event. `rewind` restores the texts as they were at that event.
2. Streamed texts become void in two cases: an attempt is discarded, or a resume restarts an unfinished inference. The
   state drops the void texts, and `take` returns a delta that reports the loss.
3. Calls of registered tools are never dropped, because the calls were made.
4. The response takes precedence over the streamed texts. `rest` returns the texts of the response that did not stream.

The cost of an event does not grow with the answer: texts are kept as pieces and joined when they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, NamedTuple, Self

from pagantic.common.v1 import message_pb2
from pagantic.orchestrator.v1 import approval_pb2, event_pb2, execution_pb2
from pagantic_common.client.descriptions import error_code_name
from pagantic_common.client.event_descriptions import describe_event
from pagantic_common.codec.errors import failure_from_proto
from pagantic_common.domain.errors import ErrorCode, PaganticError
from pagantic_common.rpc.status import error_of

_STREAMED: Final = frozenset({"content_delta", "reasoning_delta", "tool_call_delta", "tool_progress"})


def is_streamed(event: event_pb2.ExecutionEvent) -> bool:
    """Return whether an event is only streamed (a piece of text, or progress) and not stored in the timeline."""
    return event.WhichOneof("event") in _STREAMED


class DeltaKind(Enum):
    """The kind of change that a delta reports."""

    TEXT = auto()
    REASONING = auto()
    CALL = auto()
    DISCARDED = auto()
    REPEATED = auto()


@dataclass(slots=True)
class Delta:
    """The part that an event adds to an answer.

    Attributes:
        kind: TEXT and REASONING carry new text, and CALL carries the next piece of a client tool call. DISCARDED and
            REPEATED void the texts returned earlier, because their attempt was discarded or because a resume repeats
            their inference.
        text: The new text, or the next piece of a call's arguments, or the reason that texts are void.
        index: The position of a call among the client tool calls, or the number of a discarded attempt.
        call_id: The id of the call; set only in the call's first piece.
        name: The name of the client tool; set only in the first piece of the call.
    """

    kind: DeltaKind
    text: str
    index: int = 0
    call_id: str = ""
    name: str = ""

    @property
    def is_void(self) -> bool:
        """Whether this delta voids the texts returned earlier."""
        return self.kind is DeltaKind.DISCARDED or self.kind is DeltaKind.REPEATED


class TextPart:
    """Text that grows piece by piece. The pieces are joined only when the text is read."""

    __slots__ = ("_pieces", "length")

    def __init__(self, text: str = "") -> None:
        self._pieces = [text]
        self.length = len(text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TextPart) and self.text == other.text

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"TextPart({self.text!r})"

    @property
    def text(self) -> str:
        """The whole text."""
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0]

    def add(self, text: str) -> None:
        """Append to the text."""
        self._pieces.append(text)
        self.length += len(text)

    def cut(self, length: int) -> None:
        """Keep only the first `length` characters."""
        if length < self.length:
            self._pieces = [self.text[:length]]
            self.length = length


@dataclass
class CallPart:
    """A call of a registered tool. Its arguments, result and failure are empty until they are known."""

    call_id: str
    name: str
    arguments_json: str = ""
    result: str = ""
    failure: str = ""
    progress: str = ""
    has_ended: bool = False


@dataclass
class ClientCall:
    """A call of a client tool, which the caller runs. Its arguments are JSON text that grows."""

    call_id: str
    name: str
    arguments: TextPart = field(default_factory=TextPart)


class _Mark(NamedTuple):
    """A position in the texts: the counts of parts and client calls, and the lengths of the texts that may grow."""

    parts: int = 0
    text: int = 0
    reasoning: int = 0
    calls: int = 0
    arguments: int = 0


class AnswerState:
    """An answer, as built from the events taken so far.

    Pass the events of `stream`, `follow` or `follow_to_end` to `take`. After a lost connection, call `rewind` before
    the first event of `follow(request_id, after_sequence=state.sequence)`. Events of `follow_to_end` need no `rewind`,
    because no text is repeated.

    Attributes:
        parts: Texts and calls of registered tools, in order.
        reasoning: The reasoning text.
        client_calls: Calls that the caller must run.
        waiting: Pending approvals, by the id of the tool call.
        response: The response, or None until the execution has ended.
        sequence: The sequence number of the last stored event, or 0 before the first.
        model: The model of the newest inference event that names a model.
        duration_s: Duration of the ended execution in seconds, or None if unknown.
    """

    def __init__(self) -> None:
        self.parts: list[TextPart | CallPart] = []
        self.reasoning = TextPart()
        self.client_calls: list[ClientCall] = []
        self.waiting: dict[str, approval_pb2.Approval] = {}
        self.response: execution_pb2.SystemResponse | None = None
        self.sequence = 0
        self.model = ""
        self.duration_s: float | None = None
        self._tokens = 0  # token count of the newest inference
        self._stored = _Mark()  # position at the last stored event
        self._turn = _Mark()  # position at the start of the newest inference
        self._is_inferring = False
        self._is_call_open = False  # whether a client call was the last part to grow
        # The whole text, the text of the newest inference, and the reasoning, as they streamed before the response.
        self._streamed = ("", "", "")
        self._streamed_calls: list[ClientCall] = []

    @classmethod
    def of(cls, events: Iterable[event_pb2.ExecutionEvent]) -> Self:
        """Return the state after the given events."""
        state = cls()
        for event in events:
            state.take(event)
        return state

    @property
    def text(self) -> str:
        """The texts of all parts, joined."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def turn_text(self) -> str:
        """The text that streamed from the newest inference."""
        if self.response is not None:
            return self._streamed[1]
        pieces = [part.text for part in self.parts[self._turn.parts :] if isinstance(part, TextPart)]
        if self._turn.parts and isinstance(before := self.parts[self._turn.parts - 1], TextPart):
            pieces.insert(0, before.text[self._turn.text :])
        return "".join(pieces)

    @property
    def streamed_text(self) -> str:
        """The text as it streamed; the text of the response may differ."""
        if self.response is not None:
            return self._streamed[0]
        return self.text

    @property
    def calls(self) -> list[CallPart]:
        """The calls of registered tools, in order."""
        return list(self._calls())

    @property
    def error(self) -> PaganticError | None:
        """The failure that ended the execution, or None if it did not fail."""
        if self.response is None or not self.response.HasField("error"):
            return None
        return error_of(failure_from_proto(self.response.error))

    @property
    def was_stopped(self) -> bool:
        """Whether the execution was cancelled."""
        return self.error is not None and self.error.code is ErrorCode.CANCELLED_SIGNAL

    def usage(self, window: int = 0) -> tuple[int, int]:
        """Return the token count of the newest inference and the context window.

        The response's figures take precedence; otherwise the context window is `window`.
        """
        if self.response is not None and (usage := self.response.token_usage).context_window:
            return usage.context_tokens, usage.context_window
        return self._tokens, window

    def take(self, event: event_pb2.ExecutionEvent) -> Sequence[Delta]:
        """Take the next event, and return its deltas. `rest` returns the deltas of the response."""
        kind = event.WhichOneof("event") or ""  # Empty if the event is from a newer version.
        deltas: Sequence[Delta] = ()
        if (take := _TAKES.get(kind)) is not None:
            deltas = take(self, event)
        if kind not in _STREAMED and event.sequence > self.sequence:
            self.sequence = event.sequence
            self._stored = self._mark()
        return deltas

    def rewind(self) -> None:
        """Drop the texts after the last stored event."""
        self._forget_after(self._stored)

    def end(self, response: execution_pb2.SystemResponse) -> None:
        """Take the response, whose texts and calls take precedence over the streamed texts and calls."""
        self._streamed = (self.text, self.turn_text, self.reasoning.text)
        self._streamed_calls = self.client_calls
        self.response = response
        self.waiting.clear()
        last = len(self.parts) - 1
        for record in response.tool_calls_made:
            self._take_record(record)
        if response.content or not response.HasField("error"):  # A failed response keeps the streamed text.
            self._take_content(response.content, last)
        if response.reasoning:
            self.reasoning = TextPart(response.reasoning)
        self.client_calls = [
            ClientCall(call.id, call.name, TextPart(call.arguments_json)) for call in response.tool_calls
        ]

    def rest(self, text: str | None = None) -> list[Delta]:
        """Return deltas for the parts of the response that did not stream, or an empty list before the end.

        A text that was changed after it had streamed, for example by a repair, yields no delta.

        Args:
            text: The whole text of the answer as shown to the reader, with the texts around calls of registered tools;
                None selects the content of the response, which follows these texts.
        """
        response = self.response
        if response is None:
            return []
        deltas = []
        if reasoning := _beyond(self._streamed[2], response.reasoning):
            deltas.append(Delta(DeltaKind.REASONING, reasoning))
        new = self._rest_of_content(response.content) if text is None else _beyond(self._streamed[0], text)
        if new:
            deltas.append(Delta(DeltaKind.TEXT, new))
        return deltas + self._rest_of_calls(response.tool_calls, continues=self._is_call_open and not deltas)

    def _rest_of_calls(self, calls: Sequence[message_pb2.ToolCall], *, continues: bool) -> list[Delta]:
        """Return deltas for the calls that did not stream. If `continues`, first complete the last streamed call."""
        sent, deltas = len(self._streamed_calls), []
        if 0 < sent <= len(calls) and continues:
            last = calls[sent - 1].arguments_json[self._streamed_calls[-1].arguments.length :]
            deltas += [Delta(DeltaKind.CALL, last, sent - 1)] if last else []
        for index, call in list(enumerate(calls))[sent:]:
            deltas.append(Delta(DeltaKind.CALL, call.arguments_json, index, call.id, call.name))
        return deltas

    def _rest_of_content(self, content: str) -> str:
        streamed, turn, _ = self._streamed
        if content in streamed:
            return ""
        return (turn and _beyond(turn, content)) or _beyond(streamed, content)

    # ---- the kinds of events ----------------------------------------------------------------------------------------

    def _write(self, event: event_pb2.ExecutionEvent) -> Sequence[Delta]:
        text = event.content_delta.text
        if self.parts and isinstance(last := self.parts[-1], TextPart):
            last.add(text)
        else:
            self.parts.append(TextPart(text))
        self._is_call_open = False
        return (Delta(DeltaKind.TEXT, text),)

    def _reason(self, event: event_pb2.ExecutionEvent) -> Sequence[Delta]:
        text = event.reasoning_delta.text
        self.reasoning.add(text)
        self._is_call_open = False
        return (Delta(DeltaKind.REASONING, text),)

    def _grow_client_call(self, event: event_pb2.ExecutionEvent) -> Sequence[Delta]:
        delta = event.tool_call_delta
        if delta.name or not self.client_calls:
            self.client_calls.append(ClientCall(delta.id, delta.name))
        self.client_calls[-1].arguments.add(delta.arguments_json)
        self._is_call_open = True
        return (Delta(DeltaKind.CALL, delta.arguments_json, delta.index, delta.id, delta.name),)

    def _begin_call(self, event: event_pb2.ExecutionEvent) -> Sequence[Delta]:
        self._call_of(event.tool_start.tool_call_id, event.tool_start.tool_name).has_ended = False
        return ()

    def _progress(self, event: event_pb2.ExecutionEvent) -> Sequence[Delta]:
        for part in self._calls():
            if part.call_id == event.tool_call_id:
                part.progress = describe_event(event)
        return ()

    def _end_call(self, event: event_pb2.ExecutionEvent) -> Sequence[Delta]:
        end = event.tool_end
        part = self._call_of(end.tool_call_id, end.tool_name)
        part.has_ended = True
        part.progress = ""
        if not end.success:
            part.failure = error_code_name(end.error_code)
        return ()

    def _wait(self, event: event_pb2.ExecutionEvent) -> Sequence[Delta]:
        approval = event.approval_requested.approval
        self.waiting[approval.tool_call_id] = approval
        self._call_of(approval.tool_call_id, approval.tool_name).arguments_json = approval.arguments_json
        return ()

    def _resolve(self, event: event_pb2.ExecutionEvent) -> Sequence[Delta]:
        approval = event.approval_resolved.approval
        self.waiting.pop(approval.tool_call_id, None)
        part = self._call_of(approval.tool_call_id, approval.tool_name)
        part.arguments_json = approval.resolution.arguments_json or part.arguments_json
        return ()

    def _discard(self, event: event_pb2.ExecutionEvent) -> Sequence[Delta]:
        discarded = event.attempt_discarded
        has_streamed = self._forget_after(_Mark())
        self._turn = self._mark()
        self._is_inferring = False
        if not has_streamed:
            return ()
        return (Delta(DeltaKind.DISCARDED, discarded.reason, discarded.attempt),)

    def _begin_inference(self, _event: event_pb2.ExecutionEvent) -> Sequence[Delta]:
        self._turn = self._mark()
        self._is_inferring = True
        return ()

    def _end_inference(self, event: event_pb2.ExecutionEvent) -> Sequence[Delta]:
        end = event.inference_end
        self._is_inferring = False
        self._tokens = end.tokens_in + end.tokens_out
        self.model = end.model or self.model
        return ()

    def _resume(self, _event: event_pb2.ExecutionEvent) -> Sequence[Delta]:
        """Drop the texts of an unfinished inference. The resumed inference starts over and may produce other words."""
        was_inferring, self._is_inferring = self._is_inferring, False
        if was_inferring and self._forget_after(self._turn):
            return (Delta(DeltaKind.REPEATED, "the orchestrator resumed the request"),)
        return ()

    def _complete(self, event: event_pb2.ExecutionEvent) -> Sequence[Delta]:
        if event.HasField("duration"):
            self.duration_s = event.duration.ToNanoseconds() / 1e9
        self.end(event.completed.response)
        return ()

    # ---- parts and marks --------------------------------------------------------------------------------------------

    def _mark(self) -> _Mark:
        text = arguments = 0
        if self.parts and isinstance(last := self.parts[-1], TextPart):
            text = last.length
        if self.client_calls:
            arguments = self.client_calls[-1].arguments.length
        return _Mark(len(self.parts), text, self.reasoning.length, len(self.client_calls), arguments)

    def _forget_after(self, mark: _Mark) -> bool:
        """Drop the texts after a mark, but keep calls of registered tools. Return whether any text was dropped."""
        now = self._mark()
        later = self.parts[mark.parts :]
        calls = [part for part in later if isinstance(part, CallPart)]
        had_texts = len(calls) < len(later) or now[2:] != mark[2:]
        del self.parts[mark.parts :]
        if self.parts and isinstance(last := self.parts[-1], TextPart):
            had_texts = had_texts or last.length > mark.text
            last.cut(mark.text)
        self.parts += calls
        self.reasoning.cut(mark.reasoning)
        del self.client_calls[mark.calls :]
        if self.client_calls:
            self.client_calls[-1].arguments.cut(mark.arguments)
        return had_texts

    def _calls(self) -> Iterator[CallPart]:
        return (part for part in self.parts if isinstance(part, CallPart))

    def _call_of(self, call_id: str, name: str) -> CallPart:
        for part in self._calls():
            if part.call_id == call_id:
                return part
        part = CallPart(call_id, name)
        self.parts.append(part)
        return part

    def _take_record(self, record: execution_pb2.ToolCallRecord) -> None:
        part = self._call_of(record.id, record.name)
        part.arguments_json = record.arguments_json
        part.result = record.result
        part.has_ended = True
        part.failure = error_code_name(record.error_code) if record.is_error else ""

    def _take_content(self, content: str, at: int) -> None:
        """Replace the streamed text with the text of the response, which a guard may have redacted.

        `at` is the position of the last part. If the last part is a call, no text of the answer streamed after it.
        """
        if at >= 0 and isinstance(self.parts[at], TextPart):
            if self.parts[at] == TextPart(content):
                return
            del self.parts[at]
        if content:
            self.parts.append(TextPart(content))


def _beyond(sent: str, whole: str) -> str:
    """Return the rest of `whole` after `sent`, or an empty string if `whole` does not begin with `sent`."""
    return whole[len(sent) :] if whole.startswith(sent) else ""


_TAKES: Final[dict[str, Callable[[AnswerState, event_pb2.ExecutionEvent], Sequence[Delta]]]] = {
    "content_delta": AnswerState._write,  # noqa: SLF001 - the table is a part of the class
    "reasoning_delta": AnswerState._reason,  # noqa: SLF001
    "tool_call_delta": AnswerState._grow_client_call,  # noqa: SLF001
    "tool_start": AnswerState._begin_call,  # noqa: SLF001
    "tool_progress": AnswerState._progress,  # noqa: SLF001
    "tool_end": AnswerState._end_call,  # noqa: SLF001
    "approval_requested": AnswerState._wait,  # noqa: SLF001
    "approval_resolved": AnswerState._resolve,  # noqa: SLF001
    "attempt_discarded": AnswerState._discard,  # noqa: SLF001
    "inference_start": AnswerState._begin_inference,  # noqa: SLF001
    "inference_end": AnswerState._end_inference,  # noqa: SLF001
    "resumed": AnswerState._resume,  # noqa: SLF001
    "completed": AnswerState._complete,  # noqa: SLF001
}
