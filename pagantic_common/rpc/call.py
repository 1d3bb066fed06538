"""Calls of other services: propagates the remaining deadline and the correlation, and restores errors.

These are plain functions around a stub's method, because an aio interceptor needs a task for each call and layer, and a
streaming interceptor hides the call that must be cancelled.

When grpcio sends a stream of requests, it loses the status of a server that ends the call early: the failed write
becomes the call's status, and an error of the stream is only logged. This module therefore writes the requests itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from typing import Any, Final, Generic, TypeAlias, TypeVar, cast

import grpc
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind

from pagantic_common.domain.errors import DeadlineExceeded
from pagantic_common.rpc.status import no_answer, restore_error
from pagantic_common.telemetry.names import (
    AUTHORIZATION_KEY,
    CAUSED_BY_KEY,
    REQUEST_ID_KEY,
    RPC_METHOD,
    RPC_STATUS,
    RPC_SYSTEM,
    SESSION_ID_KEY,
    STEP_NAME_KEY,
)
from pagantic_common.telemetry.scope import current_deadline, current_scope
from pagantic_common.telemetry.tracing import TRACEPARENT_KEY, current_traceparent, is_recording, note_error, span

# gRPC's own deadline ends an unanswered call. A call that exceeds it by this time is ended without gRPC.
GRACE_S: Final = 1.0
STATUS_POLL_S: Final = 0.01
STATUS_POLLS: Final = 100
_FAILED_WRITE: Final = "Internal error from Core"  # The wording of grpcio.

ResponseT = TypeVar("ResponseT")
# These types are strings, because the classes of older versions of grpcio take no parameters at run time.
StreamMethod: TypeAlias = (
    "grpc.aio.UnaryStreamMultiCallable[Any, ResponseT] | grpc.aio.StreamStreamMultiCallable[Any, ResponseT]"
)
StreamCall: TypeAlias = "grpc.aio.UnaryStreamCall[Any, ResponseT] | grpc.aio.StreamStreamCall[Any, ResponseT]"


def outgoing_metadata(credentials: str = "") -> tuple[tuple[str, str | bytes], ...]:
    """Return the correlation of the current work, and the caller's credentials, as metadata."""
    correlation = current_scope()
    pairs: list[tuple[str, str | bytes]] = [
        (REQUEST_ID_KEY, correlation.request_id),
        (SESSION_ID_KEY, correlation.session_id),
        (STEP_NAME_KEY, correlation.step_name.encode()),
        (CAUSED_BY_KEY, correlation.caused_by.encode()),
        (TRACEPARENT_KEY, current_traceparent()),
        (AUTHORIZATION_KEY, credentials),
    ]
    return tuple((key, value) for key, value in pairs if value)


def remaining_timeout_s(service: str, timeout_s: float | None) -> float | None:
    """Return the shorter of `timeout_s` and the time left before the deadline.

    Raises DeadlineExceeded if the deadline has passed.
    """
    left_s = current_deadline().remaining_s(time.monotonic())
    if left_s is None:
        return timeout_s
    if left_s <= 0:
        raise DeadlineExceeded(f"the deadline passed before the {service} service was called")
    if timeout_s is None:
        return left_s
    return min(left_s, timeout_s)


async def call_unary(
    service: str,
    method: grpc.aio.UnaryUnaryMultiCallable[Any, ResponseT],
    request: Any,
    timeout_s: float | None = None,
    *,
    credentials: str = "",
) -> ResponseT:
    """Make a unary call. Raises the service's PaganticError. Cancelling the task cancels the call."""
    timeout = remaining_timeout_s(service, timeout_s)
    with _span_of(method) as called:
        try:
            reply = await method(request, timeout=timeout, metadata=outgoing_metadata(credentials))
        except grpc.aio.AioRpcError as error:
            _note_status(called, error.code())
            raise restore_error(service, error) from None
        _note_status(called, grpc.StatusCode.OK)
        return reply


@contextmanager
def _span_of(method: object) -> Iterator[Span]:
    """Record a call as a span, and send the ids of the span to the service."""
    if not is_recording():
        yield INVALID_SPAN
        return
    path = method_path(method)
    with span(path, {RPC_SYSTEM: "grpc", RPC_METHOD: path}, kind=SpanKind.CLIENT) as called:
        yield called


def method_path(method: object) -> str:
    """Return the full name of a stub's method, package.Service/Method."""
    path: bytes = getattr(method, "_method", b"")  # gRPC has no public name for the path.
    return path.decode().removeprefix("/")


def _note_status(called: Span, code: grpc.StatusCode) -> None:
    called.set_attribute(RPC_STATUS, code.name)
    if code is not grpc.StatusCode.OK:
        note_error(called, code.name)


async def call_stream(
    service: str,
    method: StreamMethod[ResponseT],
    request: Any,
    timeout_s: float | None = None,
    *,
    credentials: str = "",
    finishes_reads: bool = False,
) -> AsyncGenerator[ResponseT, None]:
    """Make a streaming call, with one request or a stream of requests.

    To leave early, close the generator (contextlib.aclosing), which cancels the call.

    With `finishes_reads`, a read in progress completes if the task is cancelled, and ends with the call's time even if
    gRPC is stuck. This needs a task for each response. Without `finishes_reads`, grpcio leaks some memory for each
    cancelled read (grpc/grpc#43360).
    """
    async with opened_stream(service, method, request, timeout_s, credentials) as opened:
        try:
            reads = _finished_reads(opened.responses, timeout_s) if finishes_reads else opened.responses
            async for response in reads:
                yield response
        except grpc.aio.AioRpcError as error:
            raise restore_error(service, await opened.error_of(error)) from None
        except TimeoutError:
            raise no_answer(service) from None


def opened_stream(
    service: str, method: StreamMethod[ResponseT], request: Any, timeout_s: float | None, credentials: str
) -> AbstractAsyncContextManager[OpenCall[ResponseT]]:
    """Make a streaming call, which is cancelled at the end of the context.

    Raises DeadlineExceeded if the deadline has passed.
    """
    return _opened_call(method, request, remaining_timeout_s(service, timeout_s), credentials)


async def _finished_reads(call: StreamCall[ResponseT], timeout_s: float | None) -> AsyncGenerator[ResponseT, None]:
    """Yield the responses of a call. Raises TimeoutError if a read exceeds the call's time."""
    end_s = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s + GRACE_S
    while True:
        async with asyncio.timeout_at(end_s):
            response = await asyncio.shield(call.read())
        if response is grpc.aio.EOF:
            return
        yield cast("ResponseT", response)


class OpenCall(Generic[ResponseT]):
    """A call in progress, whose responses are read from `responses`."""

    def __init__(self, responses: StreamCall[ResponseT]) -> None:
        self.responses = responses
        self._ends: list[grpc.aio.AioRpcError] = []

    @property
    def status(self) -> grpc.StatusCode | None:
        """The server's final status of the call, or None if the call has not ended."""
        if not self.responses.done():
            return None
        code: grpc.StatusCode = _value_of(self.responses.code())
        return code

    def note_end(self, call: Any) -> None:
        """Record the server's status. grpcio also calls this method for the status of a failed write."""
        code, details = _value_of(call.code()), _value_of(call.details())
        if details != _FAILED_WRITE:
            metadata = _value_of(call.initial_metadata()), _value_of(call.trailing_metadata())
            self._ends.append(grpc.aio.AioRpcError(code, *metadata, details))

    @asynccontextmanager
    async def writing(self, request: Any) -> AsyncIterator[None]:
        """Write a stream of requests during the block. A single request has already been written."""
        if not isinstance(request, AsyncIterable):
            yield
            return
        self.responses.add_done_callback(self.note_end)
        writing = asyncio.create_task(_write_all(self.responses, request))
        try:
            yield
        except asyncio.CancelledError:
            if writing.done() and not writing.cancelled() and (error := writing.exception()) is not None:
                raise error from None
            raise
        finally:
            self.responses.cancel()
            writing.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await writing

    async def error_of(self, error: grpc.aio.AioRpcError) -> grpc.aio.AioRpcError:
        """Return the server's error that ended the call. It may arrive shortly after a failed write."""
        for _ in range(STATUS_POLLS):
            if error.details() != _FAILED_WRITE:
                return error
            if self._ends:
                return self._ends[0]
            await asyncio.sleep(STATUS_POLL_S)
        return error


def _value_of(known: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a coroutine that does not need to wait, or None if it needs to wait."""
    try:
        known.send(None)
    except StopIteration as end:
        return end.value
    known.close()
    return None


@asynccontextmanager
async def _opened_call(
    method: Callable[..., StreamCall[ResponseT]], request: Any, timeout_s: float | None, credentials: str
) -> AsyncIterator[OpenCall[ResponseT]]:
    """Make a streaming call, which is cancelled at the end of the context. Raises the errors of the request stream."""
    with _span_of(method) as called:
        metadata = outgoing_metadata(credentials)
        if isinstance(request, AsyncIterable):
            opened = OpenCall(method(timeout=timeout_s, metadata=metadata))
        else:
            opened = OpenCall(method(request, timeout=timeout_s, metadata=metadata))
        try:
            async with opened.writing(request):
                yield opened
        finally:
            if called.is_recording() and (status := opened.status) is not None:
                _note_status(called, status)
            opened.responses.cancel()


async def _write_all(call: Any, requests: AsyncIterable[Any]) -> None:
    try:
        async for request in requests:
            await call.write(request)
        await call.done_writing()
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        return  # The call has ended, and its reader receives the status.
    except Exception:
        call.cancel()
        raise
