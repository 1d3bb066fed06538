"""The error answers of the document: the possible statuses of a path, and the shape of the body. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel

from gateway.http.document.operations import JSON, Access, Operation, Tag
from gateway.http.document.schemas import reference_to
from gateway.http.document.shapes.errors import AnthropicError, ModelError, OllamaError, OpenAIError

_SHAPES: MappingProxyType[Tag, type[BaseModel]] = MappingProxyType(
    {Tag.ANTHROPIC: AnthropicError, Tag.OLLAMA: OllamaError, Tag.MODELS: ModelError}
)
_DOOR = MappingProxyType(
    {
        403: "A page of this origin, or a caller with this key, may not do it.",
        408: "The body did not arrive in time.",
        413: "The request is too large.",
        421: "The header Host names another server.",
        500: "The system failed; its log says why.",
        503: "The system is overloaded, or a service is away: try again later.",
    }
)
_ORCHESTRATOR = MappingProxyType(
    {
        400: "The request is wrong; the message names the field.",
        401: "The API key is missing, unknown or expired.",
        404: "A model, execution or other thing that the request names does not exist.",
        409: "The state of things does not allow it, or the request id is taken by another request.",
        429: "A rate, a concurrency or a budget is used up.",
        499: "The execution was cancelled.",
        501: "The deployment cannot do it.",
        504: "The time is up.",
    }
)
# Statuses that come with the time to retry.
_RETRYABLE = (429, 503)


def failures_of(operation: Operation) -> dict[str, dict[str, str]]:
    """Return references to the answers of an operation that are errors, by their statuses."""
    name = error_shape_of(operation.tag).__name__
    return {str(status): {"$ref": f"#/components/responses/{name}{status}"} for status in _statuses_of(operation)}


def failure_responses() -> dict[str, Any]:
    """Return the answers that are errors, of every API, as components of the document."""
    shapes: list[type[BaseModel]] = [OpenAIError, *_SHAPES.values()]
    return {f"{shape.__name__}{status}": _response(shape, status) for shape in shapes for status in _sorted_statuses()}


def error_shape_of(tag: Tag) -> type[BaseModel]:
    """Return the shape of errors of an API."""
    return _SHAPES.get(tag, OpenAIError)


def _statuses_of(operation: Operation) -> Iterator[int]:
    match operation.access:
        case Access.KEY:
            yield from _sorted_statuses()
        case Access.OPEN:
            yield from _DOOR


def _sorted_statuses() -> list[int]:
    return sorted({**_DOOR, **_ORCHESTRATOR})


def _response(shape: type[BaseModel], status: int) -> dict[str, Any]:
    described: dict[str, Any] = {
        "description": {**_DOOR, **_ORCHESTRATOR}[status],
        "content": {JSON: {"schema": reference_to(shape)}},
    }
    if status in _RETRYABLE:
        summary = "After how many seconds to try again."
        described["headers"] = {"retry-after": {"description": summary, "schema": {"type": "integer", "minimum": 1}}}
    return described
