"""Calls of other services: pass on the remaining deadline and the correlation, and restore the errors.

These are plain functions around a stub's method. An aio interceptor costs a task per call and layer, and a streaming
one hides the call that must be cancelled.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias, TypeVar, cast

import grpc

from pagantic_common.domain.errors import DeadlineExceeded
from pagantic_common.rpc.request_stream import OpenCall, StreamCall, opened_call
from pagantic_common.rpc.status import restore_error
from pagantic_common.telemetry.names import (
    AUTHORIZATION_KEY,
    CAUSED_BY_KEY,
    REQUEST_ID_KEY,
    SESSION_ID_KEY,
    STEP_NAME_KEY,
)
from pagantic_common.telemetry.scope import current_deadline, current_scope
from pagantic_common.telemetry.tracing import TRACEPARENT_KEY, current_traceparent

ResponseT = TypeVar("ResponseT")
StreamMethod: TypeAlias = (
    grpc.aio.UnaryStreamMultiCallable[Any, ResponseT] | grpc.aio.StreamStreamMultiCallable[Any, ResponseT]
)


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
    """Return the shorter of `timeout_s` and the time to the deadline; raises DeadlineExceeded after the deadline."""
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
    """Make a unary call; raises the service's PaganticError. Cancelling the task cancels the call."""
    timeout = remaining_timeout_s(service, timeout_s)
    try:
        return await method(request, timeout=timeout, metadata=outgoing_metadata(credentials))
    except grpc.aio.AioRpcError as error:
        raise restore_error(service, error) from None


async def call_stream(
    service: str,
    method: StreamMethod[ResponseT],
    request: Any,
    timeout_s: float | None = None,
    *,
    credentials: str = "",
    finishes_reads: bool = False,
) -> AsyncGenerator[ResponseT, None]:
    """Make a streaming call, with a request or a stream of them; closing the generator cancels it.

    Close it (contextlib.aclosing) when leaving early.

    With `finishes_reads`, a read that is under way when the task is cancelled ends by itself. It costs a task for each
    response; without it, grpcio loses some memory for each cancelled read (grpc/grpc#43360).
    """
    async with opened_stream(service, method, request, timeout_s, credentials) as opened:
        try:
            async for response in _finished_reads(opened.responses) if finishes_reads else opened.responses:
                yield response
        except grpc.aio.AioRpcError as error:
            raise restore_error(service, await opened.error_of(error)) from None


def opened_stream(
    service: str, method: StreamMethod[ResponseT], request: Any, timeout_s: float | None, credentials: str
) -> AbstractAsyncContextManager[OpenCall[ResponseT]]:
    """Make a streaming call and cancel it at the end of the context; raises DeadlineExceeded after the deadline."""
    timeout = remaining_timeout_s(service, timeout_s)
    return opened_call(method, request, timeout, outgoing_metadata(credentials))


async def _finished_reads(call: StreamCall[ResponseT]) -> AsyncGenerator[ResponseT, None]:
    while (response := await asyncio.shield(call.read())) is not grpc.aio.EOF:
        yield cast("ResponseT", response)
