"""Converts an execution's events into an answer for scorers: text, value, tool calls, citations and measures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pagantic.orchestrator.v1 import decision_pb2, execution_pb2
from pagantic_common.client import AnswerState
from pagantic_common.client.descriptions import error_code_name
from pagantic_common.domain.text.json_text import JsonTextError, parse_json

MISSING = object()  # Marks an answer without a JSON value; null is a value.


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A tool call that the model made."""

    name: str
    arguments: Any


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of a case. `value` is MISSING if the answer has no JSON. `error` is a code, or empty on success."""

    response: execution_pb2.SystemResponse
    text: str
    value: Any
    tools: tuple[ToolUse, ...] = ()
    model: str = ""
    latency_s: float | None = None
    error: str = ""
    error_message: str = ""

    def part(self, pointer: str) -> Any:
        """Return the part of the value at a JSON pointer, or MISSING if there is no such part. Source: RFC 6901."""
        part = self.value
        for name in pointer.split("/")[1:]:
            part = _member(part, name.replace("~1", "/").replace("~0", "~"))
        return part


def answer_of(state: AnswerState) -> Answer:
    """Return the answer of an execution that was followed to its end."""
    response = state.response or execution_pb2.SystemResponse()
    return answer_of_response(response, model=state.model, latency_s=state.duration_s)


def answer_of_response(
    response: execution_pb2.SystemResponse, *, model: str = "", latency_s: float | None = None
) -> Answer:
    """Return the answer that a response contains."""
    error, message = "", ""
    if response.HasField("error"):
        error, message = error_code_name(response.error.code), response.error.message
    text, value = _text_and_value(response)
    return Answer(
        response=response,
        text=text,
        value=value,
        tools=tuple(_tools_of(response)),
        model=model,
        latency_s=latency_s,
        error=error,
        error_message=message,
    )


def _text_and_value(response: execution_pb2.SystemResponse) -> tuple[str, Any]:
    if response.decisions:
        values = [value_of_decision(decision) for decision in response.decisions]
        value: Any = values
        if len(values) == 1:
            value = values[0]
        return response.content, value
    document = response.structured_output_json or response.content
    return response.content or document, parsed(document)


def value_of_decision(decision: decision_pb2.Decision) -> Any:
    """Return the boolean answer of a predicate, the index of a choice, or the value of a score."""
    match decision.WhichOneof("answer"):
        case "predicate":
            return decision.predicate.probability > 0.5  # noqa: PLR2004 - likelier than not
        case "choice":
            return decision.choice.index
        case "score":
            return decision.score.score
    return None


def parsed(document: str) -> Any:
    """Parse a JSON document. Return MISSING if it is not JSON."""
    try:
        return parse_json(document)
    except JsonTextError:
        return MISSING


def _tools_of(response: execution_pb2.SystemResponse) -> list[ToolUse]:
    made = [ToolUse(call.name, parsed(call.arguments_json)) for call in response.tool_calls_made]
    return made + [ToolUse(call.name, parsed(call.arguments_json)) for call in response.tool_calls]


def _member(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return value.get(name, MISSING)
    if isinstance(value, list):
        return dict(zip(map(str, range(len(value))), value, strict=True)).get(name, MISSING)
    return MISSING
