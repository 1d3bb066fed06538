"""The stream of `/v1/chat/completions`: turns the events of executions into chunks. Pure: events in, chunks out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from gateway.http.openai.answers import (
    ChatCompletionChunk,
    ChunkChoice,
    FinishReason,
    Heading,
    TokenLogprobs,
    completed,
    extension_of,
    finish_reason_of,
    logprobs_of,
    text_of,
    usage_of,
)
from gateway.http.streams.blocks import discarded_after_sending
from pagantic.orchestrator.v1 import event_pb2, execution_pb2
from pagantic_common.client import AnswerState, Delta, DeltaKind

_FIELDS = {DeltaKind.TEXT: "content", DeltaKind.REASONING: "reasoning_content"}


class ChoiceChunks:
    """The chunks of a choice, in the order of its events."""

    def __init__(self, heading: Heading, index: int, ignored: Sequence[str]) -> None:
        self._heading = heading
        self._index = index
        self._ignored = ignored
        self._state = AnswerState()
        self.response: execution_pb2.SystemResponse | None = None

    def first(self) -> Iterator[ChatCompletionChunk]:
        """Yield the chunk that names the role."""
        yield self._chunk({"role": "assistant", "content": "", "refusal": None})

    def of(self, event: event_pb2.ExecutionEvent) -> Iterator[ChatCompletionChunk]:
        """Yield the chunks of an event.

        Raises the error of a response, and Aborted for a discarded attempt if the client already has some of its text.
        """
        yield from self._chunks(self._state.take(event))
        if self._state.response is not None:
            yield from self._end(self._state.response)

    def _end(self, response: execution_pb2.SystemResponse) -> Iterator[ChatCompletionChunk]:
        self.response = completed(response)
        yield from self._chunks(self._state.rest(text_of(response)))
        last = self._chunk({}, finish_reason=finish_reason_of(response), logprobs=logprobs_of(response))
        last["pagantic"] = extension_of([response], self._ignored)
        yield last

    def _chunks(self, deltas: Iterable[Delta]) -> Iterator[ChatCompletionChunk]:
        """Yield a chunk for each text, and one for all calls."""
        calls = []
        for delta in deltas:
            if delta.is_void:
                raise discarded_after_sending(delta)
            if delta.kind is DeltaKind.CALL:
                calls.append(_call_delta(delta))
            else:
                yield self._chunk({_FIELDS[delta.kind]: delta.text})
        if calls:
            yield self._chunk({"tool_calls": calls})

    def _chunk(
        self, delta: dict[str, Any], *, finish_reason: FinishReason | None = None, logprobs: TokenLogprobs | None = None
    ) -> ChatCompletionChunk:
        return _chunk_of(
            self._heading,
            [{"index": self._index, "delta": delta, "finish_reason": finish_reason, "logprobs": logprobs}],
        )


def usage_chunk(heading: Heading, responses: Sequence[execution_pb2.SystemResponse]) -> ChatCompletionChunk:
    """Return the chunk with the usage of all choices, which ends a stream if the client requested it."""
    chunk = _chunk_of(heading, [])
    chunk["usage"] = usage_of(responses)
    return chunk


def _chunk_of(heading: Heading, choices: list[ChunkChoice]) -> ChatCompletionChunk:
    return {
        "id": heading.id,
        "object": "chat.completion.chunk",
        "created": heading.created_s,
        "model": heading.model,
        "choices": choices,
    }


def _call_delta(delta: Delta) -> dict[str, Any]:
    function = {"arguments": delta.text}
    if not delta.name:
        return {"index": delta.index, "function": function}
    function = {"name": delta.name, **function}
    return {"index": delta.index, "id": delta.call_id, "type": "function", "function": function}
