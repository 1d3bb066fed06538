"""Controls the headers sent to an engine, and limits its responses."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

import httpx2

# An event of a stream becomes a gRPC message, so this limit stays below the limit of 4 MiB for such messages.
MAX_EVENT_BYTES = 1024 * 1024
EVENT_STREAM = "text/event-stream"
JSON_LINES = "application/x-ndjson"
WRITE_TIMEOUT_S = 30.0
# Only these headers are sent. The library adds headers that describe this machine, or that the environment sets for
# other services.
_SENT_HEADERS = frozenset({"host", "accept", "accept-encoding", "connection", "content-length", "content-type"})


class AnswerRefused(httpx2.StreamError):
    """Raised if a response has an unsupported form or is too large."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The limits for connections to one engine."""

    max_connections: int
    connect_timeout_s: float
    silence_s: float
    max_answer_bytes: int


def open_client(
    limits: ConnectionLimits, key: str, ca_file: str, headers: Mapping[str, str] | None = None
) -> httpx2.AsyncClient:
    """Return a client that follows no redirects and reads no proxy from the environment.

    `key` is sent as a bearer token; an empty `key` means no key. `headers` are sent with every request, such as the
    version of an API, or a key under another name. `ca_file` contains the authorities that may certify the engine; an
    empty `ca_file` selects the authorities of the system. Raises OSError if the file cannot be read.
    """
    own_headers = {"user-agent": "pagantic", **(headers or {})}
    if key:
        own_headers["authorization"] = f"Bearer {key}"
    return httpx2.AsyncClient(
        transport=BoundedTransport(limits, ca_file, own_headers),
        # Compression is not requested, because only the received bytes are counted, and decompression could exceed the
        # limit.
        headers={"accept-encoding": "identity"},
        follow_redirects=False,
        trust_env=False,
    )


def is_event_stream(headers: httpx2.Headers, types: tuple[str, ...] = (EVENT_STREAM,)) -> bool:
    """Return whether the content type of a response is a type of event streams."""
    return str(headers.get("content-type", "")).lower().startswith(types)


class BoundedTransport(httpx2.AsyncBaseTransport):
    """Sends no headers about the sender except its own, and limits the bytes of each response."""

    def __init__(self, limits: ConnectionLimits, ca_file: str, own_headers: Mapping[str, str]) -> None:
        self._inner = httpx2.AsyncHTTPTransport(
            verify=ssl.create_default_context(cafile=ca_file or None),
            limits=httpx2.Limits(max_connections=limits.max_connections),
        )
        self._max_answer_bytes = limits.max_answer_bytes
        self._own_headers = own_headers

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request and return its response.

        Raises AnswerRefused if the response is compressed. Reading a response that is too large also raises
        AnswerRefused.
        """
        sent = {name: value for name, value in request.headers.items() if name in _SENT_HEADERS}
        request.headers = httpx2.Headers({**sent, **self._own_headers})
        response = await self._inner.handle_async_request(request)
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            await response.aclose()
            raise AnswerRefused("it compresses its answers, although it was asked not to")
        if not isinstance(response.stream, httpx2.AsyncByteStream):
            return response
        is_events = is_event_stream(response.headers, (EVENT_STREAM, JSON_LINES))
        return httpx2.Response(
            response.status_code,
            headers=response.headers,
            stream=_BoundedStream(response.stream, self._max_answer_bytes, is_events=is_events),
            extensions=response.extensions,
        )

    async def aclose(self) -> None:
        """Close all connections."""
        await self._inner.aclose()


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream, max_bytes: int, *, is_events: bool) -> None:
        self._inner = inner
        self._max_bytes = max_bytes
        self._is_events = is_events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        total = line = 0
        async for part in self._inner:
            total += len(part)
            after_line = len(part) - part.rfind(b"\n") - 1
            line = after_line if b"\n" in part else line + len(part)
            if total > self._max_bytes:
                raise AnswerRefused(f"its answer has more than {self._max_bytes} bytes, the limit of max_answer_bytes")
            if self._is_events and line > MAX_EVENT_BYTES:
                raise AnswerRefused(f"an event of its stream has more than {MAX_EVENT_BYTES} bytes")
            yield part

    async def aclose(self) -> None:
        await self._inner.aclose()
