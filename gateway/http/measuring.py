"""Measures requests: their number by path and status, their duration, and the time until a stream begins.

Each request is a span below the caller's span, which the `traceparent` header identifies.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from opentelemetry.trace import INVALID_SPAN, Span
from starlette.datastructures import Headers
from starlette.types import Message, Scope, Send

from gateway.http.failures import CLIENT_LEFT
from gateway.http.operations import JSON_LINES, SENT_EVENTS
from pagantic_common.telemetry.metrics import DURATION_BOUNDS_S, add_gauge, make_histogram
from pagantic_common.telemetry.names import (
    ERROR_TYPE,
    HTTP_FIRST_CHUNK_DURATION,
    HTTP_MAX_REQUESTS,
    HTTP_METHOD,
    HTTP_OPEN_STREAMS,
    HTTP_REQUEST_DURATION,
    HTTP_ROUTE,
    HTTP_RUNNING_REQUESTS,
    HTTP_STATUS,
    URL_PATH,
    URL_SCHEME,
)
from pagantic_common.telemetry.tracing import TRACEPARENT_KEY, error_type_of, note_error, server_span

# The application stores the path of the matching route under this key. Raw paths would be unbounded labels.
ROUTE = "pagantic.route"
# The application stores the error of a stream that broke after its status was sent under this key.
BROKEN = "pagantic.broken"
SERVER_ERROR = 500
_METHODS = frozenset({"GET", "HEAD", "POST", "DELETE", "PUT", "PATCH", "OPTIONS"})

request_duration = make_histogram(
    HTTP_REQUEST_DURATION, "time of a request until its answer has ended", unit="s", bounds=DURATION_BOUNDS_S
)
first_chunk_duration = make_histogram(
    HTTP_FIRST_CHUNK_DURATION, "time of a request until its stream begins", unit="s", bounds=DURATION_BOUNDS_S
)


class Streams:
    """Counts the open streams."""

    def __init__(self) -> None:
        self.count = 0

    @contextmanager
    def measuring(self, scope: Scope, send: Send, *, is_traced: bool = True) -> Iterator[Send]:
        """Measure a request while the block runs. The answer must be sent through the yielded `Send`."""
        method = _method_of(scope)
        traced: AbstractContextManager[Span] = nullcontext(INVALID_SPAN)
        if is_traced:
            traced = server_span(method, {HTTP_METHOD: method}, Headers(scope=scope).get(TRACEPARENT_KEY, ""))
        with traced as served:
            measured = _Measured(scope, send, self)
            try:
                yield measured.send
            finally:
                measured.end(served)


class _Measured:
    """Measures a request. Until a status is sent, the request counts as disconnected by its client."""

    def __init__(self, scope: Scope, send: Send, streams: Streams) -> None:
        self._scope = scope
        self._send = send
        self._streams = streams
        self._begun_s = time.monotonic()
        self._status = CLIENT_LEFT
        self._is_stream = False

    async def send(self, message: Message) -> None:
        """Send a message of the answer and record its status."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._begin_stream(Headers(raw=message["headers"]).get("content-type", ""))
        await self._send(message)

    def _begin_stream(self, content_type: str) -> None:
        """Count the answer if it is a stream. The first chunk is available when the status is sent."""
        if not content_type.startswith((SENT_EVENTS, JSON_LINES)):
            return
        self._is_stream = True
        self._streams.count += 1
        first_chunk_duration.record(time.monotonic() - self._begun_s, {HTTP_ROUTE: self._route()})

    def end(self, served: Span) -> None:
        """Record the request and complete its span."""
        self._streams.count -= self._is_stream
        error_type = ""
        if BROKEN in self._scope:
            error_type = error_type_of(self._scope[BROKEN])
        elif self._status >= SERVER_ERROR:
            error_type = str(self._status)
        attributes: dict[str, str | int] = {
            HTTP_ROUTE: self._route(),
            HTTP_METHOD: _method_of(self._scope),
            HTTP_STATUS: self._status,
        }
        if served.is_recording():
            served.update_name(f"{attributes[HTTP_METHOD]} {attributes[HTTP_ROUTE]}".rstrip())
            served.set_attributes({**attributes, URL_PATH: self._scope["path"], URL_SCHEME: self._scope["scheme"]})
        if error_type:
            attributes[ERROR_TYPE] = error_type
            note_error(served, error_type)
        request_duration.record(time.monotonic() - self._begun_s, attributes)

    def _route(self) -> str:
        """Return the path of the route, or an empty string if no route was found."""
        route: str = self._scope.get(ROUTE, "")
        return route


def _method_of(scope: Scope) -> str:
    """Return the method of a request. All unknown methods share a single name."""
    method: str = scope["method"]
    return method if method in _METHODS else "_OTHER"


def report_load(running: Callable[[], float], most: int, streams: Streams) -> None:
    """Report running requests, their limit, and open streams whenever the metrics are read."""
    add_gauge(HTTP_RUNNING_REQUESTS, "requests that run", running)
    add_gauge(HTTP_MAX_REQUESTS, "most requests that may run", lambda: most)
    add_gauge(HTTP_OPEN_STREAMS, "streams that are open", lambda: streams.count)
