"""Implements RemoteEngine over OpenAI's HTTP API.

vLLM, SGLang, llama-server, Ollama, hosted services and pagantic itself serve this API.
"""

from __future__ import annotations

import email.utils
import logging
import re
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, cast

import httpx2
from openai import APIConnectionError, APIError, APIStatusError, APITimeoutError, AsyncOpenAI, AsyncStream, OpenAIError

from pagantic_common.domain.errors import (
    ErrorCode,
    Internal,
    InvalidRequest,
    Overloaded,
    PaganticError,
    PreconditionFailed,
    Unavailable,
)
from services.inference.adapters.remote.forms import chunk_of, embeddings_of
from services.inference.adapters.remote.transport import (
    WRITE_TIMEOUT_S,
    AnswerRefused,
    ConnectionLimits,
    is_event_stream,
    open_client,
)
from services.inference.core.embedding import Vectors
from services.inference.core.remote.answers import Chunk
from services.inference.core.remote.requests import RemoteRequest

RETRY_AFTER_S = 1.0
MIN_RETRY_AFTER_S, MAX_RETRY_AFTER_S = 0.1, 3600.0
MAX_REASON_CHARS = 300
_CONTEXT = re.compile(r"context.?(length|size|window)|maximum context|max_model_len|input is too long", re.IGNORECASE)
_CONSTRAINT = re.compile(r"response_format|json.?schema|grammar|guided", re.IGNORECASE)
_ENGINES_FAULT = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.CONFLICT, HTTPStatus.TOO_EARLY)
_SETTINGS = (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED)
# Below this level, these libraries log every request, but the log must not contain prompts.
for _name in ("openai", "httpx2", "httpcore2"):
    logging.getLogger(_name).setLevel(logging.WARNING)

# The expected failures are errors of the library, errors of the connection, and invalid responses.
_FAILURES = (OpenAIError, httpx2.HTTPError, httpx2.StreamError, ValueError, RecursionError)


def error_of(error: Exception, engine: str, key_name: str) -> PaganticError:
    """Return the PaganticError that corresponds to an error of OpenAI's library or of the HTTP client.

    `engine` names the engine, and `key_name` names the source of its key.
    """
    if isinstance(error, APIStatusError):
        return _of_status(error, engine, key_name)
    if isinstance(error, AnswerRefused):
        return _malformed(engine, str(error))
    if isinstance(error, APIConnectionError | httpx2.HTTPError | httpx2.StreamError):
        return _away(engine, _words_of(error))
    if isinstance(error, APIError):
        return _of_event(error, engine)
    return _malformed(engine, f"its answer cannot be read ({type(error).__name__})")


def _of_status(error: APIStatusError, engine: str, key_name: str) -> PaganticError:
    status = error.status_code
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return PreconditionFailed(
            f"{engine} refuses the key ({status}): set {key_name} to one that it takes",
            code=ErrorCode.CONFIG_NO_ENGINE,
        )
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return Overloaded(
            f"{engine} is overloaded ({status})",
            code=ErrorCode.INFERENCE_OVERLOADED,
            retry_after_s=_retry_after_s(error.response.headers),
        )
    if status in _SETTINGS or status < HTTPStatus.BAD_REQUEST:
        return PreconditionFailed(
            f"{engine} does not serve the model at this address ({status}): check url and model of the alias in "
            "PAGANTIC_INFERENCE_REMOTES",
            code=ErrorCode.CONFIG_NO_ENGINE,
        )
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _ENGINES_FAULT:
        if _CONTEXT.search(_reason_of(error)):
            return _refused(error, engine)
        return _away(engine, f"it answers {status}", _retry_after_s(error.response.headers))
    return _refused(error, engine)


def _of_event(error: APIError, engine: str) -> PaganticError:
    """Return the PaganticError for an error event in a stream."""
    reason = _reason_of(error)
    if _CONTEXT.search(reason) or str(error.code) == str(HTTPStatus.BAD_REQUEST.value):
        return _refused(error, engine)
    return Internal(f"{engine} failed: {reason}", code=ErrorCode.INFERENCE_ENGINE_ERROR)


def _refused(error: APIError, engine: str) -> InvalidRequest:
    reason = _reason_of(error)
    code = ErrorCode.CONFIG_INVALID
    if _CONTEXT.search(f"{reason} {error.code} {error.type}"):
        code = ErrorCode.INFERENCE_CONTEXT_EXCEEDED
    elif _CONSTRAINT.search(reason):
        code = ErrorCode.CONSTRAINT_GRAMMAR_INVALID
    return InvalidRequest(f"{engine} refuses the request: {reason}", code=code)


def _away(engine: str, reason: str, retry_after_s: float = RETRY_AFTER_S) -> Unavailable:
    return Unavailable(
        f"{engine} is away: {reason}", code=ErrorCode.INFERENCE_MODEL_UNAVAILABLE, retry_after_s=retry_after_s
    )


def _malformed(engine: str, reason: str) -> Internal:
    return Internal(f"{engine} sent what cannot be used: {reason}", code=ErrorCode.INFERENCE_MALFORMED_RESPONSE)


def _words_of(error: Exception) -> str:
    """Describe a failed connection. OpenAI's library attaches the error of the HTTP client as the cause."""
    if isinstance(error, APITimeoutError | httpx2.TimeoutException):
        return "it does not answer in time"
    cause = error.__cause__ if isinstance(error, APIConnectionError) else error
    if isinstance(cause, httpx2.ConnectError):
        return f"it cannot be reached ({_printable(str(cause)) or 'no reason given'})"
    if isinstance(cause, httpx2.RemoteProtocolError | httpx2.ReadError):
        return "the connection broke"
    return f"the connection failed ({type(cause).__name__})"


def _reason_of(error: APIError) -> str:
    """Return the engine's own message, which may quote the caller's request."""
    words = error.message
    if isinstance(error.body, Mapping) and isinstance(error.body.get("message"), str):
        words = error.body["message"]
    return _printable(words) or "it gives no reason"


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text[:MAX_REASON_CHARS]).strip()


def _retry_after_s(headers: httpx2.Headers) -> float:
    """Return the wait that Retry-After requests, in seconds, limited to between 0.1 s and one hour.

    The header contains a number or a date (RFC 9110).
    """
    text = headers.get("retry-after", "")
    try:
        if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text):
            wait_s = float(text)
        else:
            wait_s = email.utils.parsedate_to_datetime(text).timestamp() - time.time()
    except (ValueError, OverflowError):
        return RETRY_AFTER_S
    return min(max(wait_s, MIN_RETRY_AFTER_S), MAX_RETRY_AFTER_S)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address and key of an engine.

    If `key` is empty, no key is sent. `key_name` describes the source of the key.
    """

    alias: str
    url: str
    key: str = field(default="", repr=False)
    key_name: str = "api_key_env or api_key_file"
    ca_file: str = ""


class OpenAiEngine:
    """The engine at one address. It does not retry failed requests; callers decide on retries."""

    def __init__(self, endpoint: Endpoint, limits: ConnectionLimits) -> None:
        self._name = f"the engine of model {endpoint.alias!r}"
        self._key_name = endpoint.key_name
        self._client = AsyncOpenAI(
            base_url=endpoint.url,
            api_key="the transport sends the key",
            max_retries=0,
            http_client=open_client(limits, endpoint.key, endpoint.ca_file),
            timeout=httpx2.Timeout(
                connect=limits.connect_timeout_s, read=limits.silence_s, write=WRITE_TIMEOUT_S, pool=None
            ),
        )

    async def stream(self, request: RemoteRequest) -> AsyncGenerator[Chunk, None]:
        """Yield the chunks of an answer; closing the generator closes the connection."""
        try:
            opened = await self._client.post(
                request.path, body=request.body, cast_to=object, stream=True, stream_cls=AsyncStream[object]
            )
            async with opened as events:
                if not is_event_stream(opened.response.headers):
                    raise AnswerRefused("its answer is no stream of events")
                async for data in events:
                    yield chunk_of(data)
        except _FAILURES as error:
            raise error_of(error, self._name, self._key_name) from None

    async def embed(self, request: RemoteRequest) -> tuple[Vectors, int]:
        """Return one vector of any length per text, in order, and the number of tokens in all texts."""
        try:
            data = await self._client.post(request.path, body=request.body, cast_to=cast("type[Any]", object))
            return embeddings_of(data)
        except _FAILURES as error:
            raise error_of(error, self._name, self._key_name) from None

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()
