"""Builds the answers of Ollama's API: whole answers, the lines of a stream, and errors.

The module is pure: it converts responses and events of an execution into objects of this API.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NotRequired

from pydantic import RootModel

from gateway.http.bodies import AnswerShape
from gateway.http.failures import CodedDetails, OpenAIErrorObject, coded_details, error_of, status_of
from gateway.http.openai.answers import Extension, completed, extension_of, finish_reason_of, text_of
from gateway.http.operations import JSON_LINES, Dialect
from gateway.http.streams.blocks import BlockKind, Blocks, Move, Step
from pagantic.common.v1 import message_pb2
from pagantic.orchestrator.v1 import event_pb2, execution_pb2
from pagantic_common.domain.errors import PaganticError

_NS = 1_000_000_000


class AnswerLine(AnswerShape):
    """The common fields of every line of an answer, and of the whole answer."""

    model: str
    created_at: str
    done: bool
    done_reason: NotRequired[Literal["stop", "length", "content_filter", "load", "unload"]]
    prompt_eval_count: NotRequired[int]
    eval_count: NotRequired[int]
    eval_duration: NotRequired[int]
    pagantic: NotRequired[Extension]


class OllamaMessage(AnswerShape):
    """The whole message or, in a stream, a part of it."""

    role: Literal["assistant"]
    content: str
    thinking: NotRequired[str]
    tool_calls: NotRequired[list[dict[str, Any]]]


class OllamaChat(AnswerLine):
    """A line of the answer to a chat, or the whole answer."""

    message: OllamaMessage


class OllamaText(AnswerLine):
    """A line of the answer to a prompt, or the whole answer."""

    response: str
    thinking: NotRequired[str]


class OllamaError(AnswerShape):
    """An error of Ollama's API."""

    error: str
    pagantic: CodedDetails


class OllamaChatLine(RootModel[OllamaChat | OllamaError]):
    """A line of the answer to a chat. An error ends the stream early."""


class OllamaTextLine(RootModel[OllamaText | OllamaError]):
    """A line of the answer to a prompt. An error ends the stream early."""


def error_body(described: OpenAIErrorObject, _status: int, _request_id: str) -> OllamaError:
    """Return the body for an error: its text, and the fields that this API lacks."""
    return {"error": described["message"], "pagantic": coded_details(described)}


OLLAMA = Dialect("Ollama", OllamaError, error_body, JSON_LINES)


@dataclass(frozen=True, slots=True)
class LineHead:
    """The common fields of every line of an answer.

    Args:
    model: The name of the model that the client sent, or the name of the default model.
    created_at: The time of the request in RFC 3339 format.
    is_chat: Whether the answer is a message, for `/api/chat`, or a text, for `/api/generate`.
    ignored: Fields of the request that have no effect.
    """

    model: str
    created_at: str
    is_chat: bool
    ignored: Sequence[str] = ()

    def line(
        self, text: str = "", thinking: str = "", calls: Sequence[message_pb2.ToolCall] = ()
    ) -> OllamaChat | OllamaText:
        """Return a line that contains this part of the answer."""
        if not self.is_chat:
            return self._text(text, thinking)
        message: OllamaMessage = {"role": "assistant", "content": text}
        if thinking:
            message["thinking"] = thinking
        if calls:
            message["tool_calls"] = [_call(index, call) for index, call in enumerate(calls)]
        return {"model": self.model, "created_at": self.created_at, "message": message, "done": False}

    def _text(self, text: str, thinking: str) -> OllamaText:
        if not thinking:
            return {"model": self.model, "created_at": self.created_at, "response": text, "done": False}
        return {
            "model": self.model,
            "created_at": self.created_at,
            "response": text,
            "thinking": thinking,
            "done": False,
        }

    def confirmed(self, reason: Literal["load", "unload"]) -> AnswerLine:
        """Return the complete answer to a request that contains no question."""
        line: AnswerLine = self.line()
        line["done"] = True
        line["done_reason"] = reason
        return line

    def ended(self, line: AnswerLine, response: execution_pb2.SystemResponse) -> AnswerLine:
        """Add the fields that end an answer. An answer with tool calls ends with the reason `stop`, as in Ollama.

        The decoding time, in nanoseconds, is the only duration that the orchestrator reports.
        """
        reason, usage = finish_reason_of(response), response.token_usage
        line["done"] = True
        line["done_reason"] = "stop" if reason == "tool_calls" else reason
        line["prompt_eval_count"] = usage.prompt_tokens
        line["eval_count"] = usage.output_tokens
        if usage.decode_seconds:
            line["eval_duration"] = round(usage.decode_seconds * _NS)
        line["pagantic"] = extension_of([response], self.ignored)
        return line


def whole_of(head: LineHead, response: execution_pb2.SystemResponse) -> AnswerLine:
    """Return the complete answer for a response."""
    return head.ended(head.line(text_of(response), response.reasoning, response.tool_calls), response)


def _call(index: int, call: message_pb2.ToolCall) -> dict[str, Any]:
    function = {"index": index, "name": call.name, "arguments": json.loads(call.arguments_json)}
    return {"id": call.id, "function": function}


class AnswerLines:
    """Produces the lines of an answer in order."""

    def __init__(self, head: LineHead) -> None:
        self._head = head
        self._blocks = Blocks(has_calls=False)  # Calls come last, because their arguments are complete objects.

    def first(self) -> Iterator[AnswerLine]:
        """Yield no lines, because a stream of this API has no opening line."""
        yield from ()

    def of(self, event: event_pb2.ExecutionEvent) -> Iterator[AnswerLine]:
        """Yield the lines for an event of the execution.

        Raises the error of a failed response, or Aborted if an attempt is discarded or its text is changed after the
        client received some of it.
        """
        yield from self._lines(self._blocks.of(event))
        if self._blocks.response is not None:
            yield from self._end(completed(self._blocks.response))

    def error(self, error: PaganticError, request_id: str) -> Iterator[OllamaError]:
        """Yield the line for an error that ends the stream early."""
        yield error_body(error_of(error, request_id), status_of(error), request_id)

    def _end(self, response: execution_pb2.SystemResponse) -> Iterator[AnswerLine]:
        yield from self._lines(self._blocks.rest(text_of(response)))
        if response.tool_calls:
            yield self._head.line(calls=response.tool_calls)
        yield self._head.ended(self._head.line(), response)

    def _lines(self, moves: Iterable[Move]) -> Iterator[AnswerLine]:
        """Yield a line for each move that adds text."""
        for step, block, text in moves:
            if step is Step.GROW and block.kind is BlockKind.REASONING:
                yield self._head.line(thinking=text)
            elif step is Step.GROW:
                yield self._head.line(text)
