"""Streaming calls, with one request or a stream of requests.

grpcio's own sending of a stream loses the status of a server that ends the call early: the failed write becomes the
call's status, and an error of the stream is only logged. So requests are written here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, Generic, TypeAlias, TypeVar

import grpc

STATUS_POLL_S: Final = 0.01
STATUS_POLLS: Final = 100
_FAILED_WRITE: Final = "Internal error from Core"  # grpcio's words

ResponseT = TypeVar("ResponseT")
StreamCall: TypeAlias = grpc.aio.UnaryStreamCall[Any, ResponseT] | grpc.aio.StreamStreamCall[Any, ResponseT]


class OpenCall(Generic[ResponseT]):
    """A call that is made; its responses are read from `responses`."""

    def __init__(self, responses: StreamCall[ResponseT]) -> None:
        self.responses = responses
        self._ends: list[grpc.aio.AioRpcError] = []

    def note_end(self, call: Any) -> None:
        """Note the server's status; grpcio calls this each time that it sets one, and a failed write sets another."""
        code, details = _value_of(call.code()), _value_of(call.details())
        if details != _FAILED_WRITE:
            metadata = _value_of(call.initial_metadata()), _value_of(call.trailing_metadata())
            self._ends.append(grpc.aio.AioRpcError(code, *metadata, details))

    async def error_of(self, error: grpc.aio.AioRpcError) -> grpc.aio.AioRpcError:
        """Return the error with which the server ended the call: a failed write may be reported a moment before it."""
        for _ in range(STATUS_POLLS):
            if error.details() != _FAILED_WRITE:
                return error
            if self._ends:
                return self._ends[0]
            await asyncio.sleep(STATUS_POLL_S)
        return error


def _value_of(known: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a coroutine that has nothing to wait for."""
    try:
        known.send(None)
    except StopIteration as end:
        return end.value
    known.close()
    return None


@asynccontextmanager
async def opened_call(
    method: Callable[..., StreamCall[ResponseT]],
    request: Any,
    timeout_s: float | None,
    metadata: tuple[tuple[str, str | bytes], ...],
) -> AsyncIterator[OpenCall[ResponseT]]:
    """Make a streaming call, and cancel it at the end of the context; raises the errors of a stream of requests."""
    call: Any
    if not isinstance(request, AsyncIterable):
        call = method(request, timeout=timeout_s, metadata=metadata)
        try:
            yield OpenCall(call)
        finally:
            call.cancel()
        return
    call = method(timeout=timeout_s, metadata=metadata)
    opened: OpenCall[ResponseT] = OpenCall(call)
    call.add_done_callback(opened.note_end)
    writing = asyncio.create_task(_write_all(call, request))
    try:
        yield opened
    except asyncio.CancelledError:
        if writing.done() and not writing.cancelled() and (error := writing.exception()) is not None:
            raise error from None
        raise
    finally:
        call.cancel()
        writing.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await writing


async def _write_all(call: Any, requests: AsyncIterable[Any]) -> None:
    try:
        async for request in requests:
            await call.write(request)
        await call.done_writing()
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        return  # the call has ended, and its reader gets the status
    except Exception:
        call.cancel()
        raise
