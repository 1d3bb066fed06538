"""The dialects of the APIs: their error bodies, stream types, and headers with request ids."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from gateway.http.anthropic import errors as anthropic_errors
from gateway.http.anthropic.messages import PATH as MESSAGES_PATH
from gateway.http.anthropic.models import VERSION_HEADER
from gateway.http.ollama import errors as ollama_errors

REQUEST_ID = "x-request-id"


@dataclass(frozen=True, slots=True)
class Dialect:
    """The dialect of an API.

    Args:
        error_body: Makes the body for an error of its form in OpenAI's API, its status, and the request's id.
        stream_type: The content type of streams.
        id_headers: Names of the headers that have the request's id.
    """

    error_body: Callable[[dict[str, Any], int, str], dict[str, Any]]
    stream_type: str = "text/event-stream; charset=utf-8"
    id_headers: tuple[str, ...] = (REQUEST_ID,)


def _openai_error_body(described: dict[str, Any], _status: int, _request_id: str) -> dict[str, Any]:
    return {"error": described}


_OPENAI = Dialect(_openai_error_body)
_ANTHROPIC = Dialect(anthropic_errors.error_body, id_headers=(REQUEST_ID, "request-id"))
_OLLAMA = Dialect(ollama_errors.error_body, "application/x-ndjson")


def dialect_of(request: Request) -> Dialect:
    """Return the dialect of a request's client, from its path, or from a header for the models."""
    path = request.scope["path"]
    if path.startswith("/api/"):
        return _OLLAMA
    if path.startswith(MESSAGES_PATH) or (path.startswith("/v1/models") and VERSION_HEADER in request.headers):
        return _ANTHROPIC
    return _OPENAI
