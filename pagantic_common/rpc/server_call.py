"""Wraps every call of a server: limits calls, sets their scope, and turns their errors into statuses.

The scope is read from the metadata of a call: the caller's correlation, trace and deadline.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

import grpc
from google.protobuf import message

from pagantic_common.domain.calls.correlation import CorrelationContext
from pagantic_common.domain.deadline import Deadline
from pagantic_common.domain.errors import (
    ErrorCode,
    Internal,
    InvalidRequest,
    Overloaded,
    PaganticError,
    Unauthenticated,
    Unavailable,
)
from pagantic_common.domain.ids import require_id
from pagantic_common.rpc.access.gate import Admitted, Gate, Metadata
from pagantic_common.rpc.access.tls.certificates import expiry_of
from pagantic_common.rpc.call_limits import CallLimits, CallShares
from pagantic_common.rpc.reading import RequestStream, WaitLimits, check_readable, tolerant
from pagantic_common.rpc.status import DETAILS_KEY, details_of, status_code_of, status_message
from pagantic_common.telemetry.logging import get_logger, report_bug
from pagantic_common.telemetry.metrics import DURATION_BOUNDS_S, make_counter, make_histogram
from pagantic_common.telemetry.names import (
    CAUSED_BY_KEY,
    REQUEST_ID_KEY,
    RPC_CALL_DURATION,
    RPC_METHOD,
    RPC_RETRIED_CALLS,
    RPC_STATUS,
    RPC_SYSTEM,
    SESSION_ID_KEY,
    STEP_NAME_KEY,
)
from pagantic_common.telemetry.scope import current_principal, work_scope
from pagantic_common.telemetry.tracing import (
    TRACEPARENT_KEY,
    error_type_of,
    is_recording,
    note_error,
    server_span,
    span_id_of,
    trace_ids,
)

# gRPC's own metadata: the time until the caller's retry (negative forbids a retry), and the number of earlier attempts.
RETRY_PUSHBACK_KEY = "grpc-retry-pushback-ms"
PREVIOUS_ATTEMPTS_KEY = "grpc-previous-rpc-attempts"
SPIFFE_ID_PROPERTY, CERTIFICATE_PROPERTY = "peer_spiffe_id", "x509_pem_cert"  # These names are gRPC's.

log = get_logger(__name__)
call_duration = make_histogram(
    RPC_CALL_DURATION,
    "how long calls took that ended",
    unit="s",
    bounds=DURATION_BOUNDS_S,
)
retried_calls = make_counter(RPC_RETRIED_CALLS, "Calls that are retries of calls without an answer")

Context = grpc.aio.ServicerContext[Any, Any]
Trailing = tuple[tuple[str, str | bytes], ...]
_NO_RETRY: Trailing = ((RETRY_PUSHBACK_KEY, "-1"),)


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Wraps this system's methods, and limits calls of every method.

    Every method that accepts a stream of requests must also return a stream of responses.
    """

    def __init__(self, limits: CallLimits, shares: CallShares, gate: Gate, waits: WaitLimits) -> None:
        self._limits = limits
        self._shares = shares
        self._gate = gate
        self._waits = waits

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Return the handler of the method, wrapped in the scope of its call."""
        handler: Any = await continuation(handler_call_details)
        if handler is None:
            return None
        if handler_call_details.method.startswith("/grpc."):
            return self._bound_side_stream(handler)  # type: ignore[no-any-return]
        codec = {
            "request_deserializer": tolerant(handler.request_deserializer),
            "response_serializer": handler.response_serializer,
        }
        method = handler_call_details.method.removeprefix("/")
        if handler.request_streaming:
            return grpc.stream_stream_rpc_method_handler(self._around_stream(method, handler.stream_stream), **codec)
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(self._around_stream(method, handler.unary_stream), **codec)
        return grpc.unary_unary_rpc_method_handler(self._around_unary(method, handler.unary_unary), **codec)

    def _around_unary(
        self, method: str, behavior: Callable[[Any, Context], Awaitable[Any]]
    ) -> Callable[[Any, Context], Awaitable[Any]]:
        async def unary(request: Any, context: Context) -> Any:
            end = _End(method)
            try:
                async with self._call_scope(method, request, context) as admitted, admitted.until_refused():
                    reply = await behavior(request, context)
            except grpc.aio.AbortError:
                raise
            except (asyncio.CancelledError, Exception) as error:  # noqa: BLE001 - the edge of the process
                del request  # gRPC keeps this frame, as `_forget_frames` says.
                await _abort(context, error, end)
            else:
                end.status = "OK"
                return reply
            finally:
                end.record()

        return unary

    def _around_stream(
        self, method: str, behavior: Callable[[Any, Context], AsyncGenerator[Any, None]]
    ) -> Callable[[Any, Context], AsyncIterator[Any]]:
        async def stream(request: Any, context: Context) -> AsyncIterator[Any]:
            end = _End(method)
            if isinstance(request, AsyncIterable):
                request = RequestStream(request, self._waits)
            try:
                # Closed explicitly, not by the garbage collector, so that the work stops as soon as the caller leaves.
                async with (
                    self._call_scope(method, request, context) as admitted,
                    aclosing(behavior(request, context)) as responses,
                ):
                    while (response := await admitted.next_of(responses)) is not None:
                        yield response
            except grpc.aio.AbortError:
                raise
            except (asyncio.CancelledError, Exception) as error:  # noqa: BLE001 - the edge of the process
                del request  # gRPC keeps this frame, as `_forget_frames` says.
                await _abort(context, error, end)
            else:
                end.status = "OK"
            finally:
                end.record()

        return stream

    @asynccontextmanager
    async def _call_scope(self, method: str, request: Any, context: Context) -> AsyncIterator[Admitted]:
        peer = context.peer()
        size = 0
        if isinstance(request, message.Message):
            size = request.ByteSize()
        self._limits.begin_call(peer, size)
        try:
            pairs = tuple(context.invocation_metadata() or ())
            metadata = dict(pairs)
            if PREVIOUS_ATTEMPTS_KEY in metadata:
                retried_calls.add(1, {"grpc.method": method})
            with caller_scope(method, metadata, context.time_remaining()), _logging_failures():
                async with self._admit(method, pairs, context) as admitted:
                    check_readable(request)
                    yield admitted
        finally:
            self._limits.end_call(peer, size)

    @asynccontextmanager
    async def _admit(self, method: str, metadata: Metadata, context: Context) -> AsyncIterator[Admitted]:
        """Admit a call for the enclosed work, with its share of the running calls."""
        async with self._gate.admit(method, metadata, partial(_spiffe_id_of_peer, context)) as admitted:
            with self._shares.held(context.peer(), current_principal()):
                yield admitted

    def _bound_side_stream(self, handler: Any) -> Any:
        """Limit the streams of gRPC's own services. Their unary methods, such as health checks, are not limited."""
        if not handler.response_streaming:
            return handler
        behavior, make_handler = handler.unary_stream, grpc.unary_stream_rpc_method_handler
        if handler.request_streaming:
            behavior, make_handler = handler.stream_stream, grpc.stream_stream_rpc_method_handler

        async def stream(request: Any, context: Context) -> AsyncIterator[Any]:
            peer = context.peer()
            try:
                self._limits.begin_side_stream(peer)
            except Overloaded as error:
                await _abort(context, error, _End(""))  # This end is not recorded.
            try:
                async with aclosing(behavior(request, context)) as responses:
                    async for response in responses:
                        yield response
            finally:
                self._limits.end_side_stream(peer)

        return make_handler(
            stream,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )


@contextmanager
def _logging_failures() -> Iterator[None]:
    """Log the failures of the enclosed work, so that the log entries have the ids of the call."""
    try:
        yield
    except grpc.aio.AbortError:
        raise
    except Internal as error:
        if error.code in (ErrorCode.INFERENCE_ENGINE_ERROR, None):
            log.error("call failed", code=error.code, message=str(error))  # noqa: TRY400 - an expected failure
        raise
    except PaganticError:
        raise
    except Exception as error:
        raise Internal(report_bug(log, error)) from error


def _spiffe_id_of_peer(context: Context) -> str:
    """Return the SPIFFE id in the peer's certificate, or an empty string unless the certificate has exactly one id.

    Raises Unauthenticated if the certificate has expired since gRPC checked it at the start of the connection.
    """
    properties = context.auth_context()
    if any(expiry_of(certificate) <= time.time() for certificate in properties.get(CERTIFICATE_PROPERTY, ())):
        raise Unauthenticated(
            "the caller's certificate has expired: connect again with a new certificate", code=ErrorCode.AUTH_EXPIRED
        )
    ids = [value.decode() for value in properties.get(SPIFFE_ID_PROPERTY, ())]
    if len(ids) != 1:
        return ""
    return ids[0]


@dataclass(slots=True)
class _End:
    """The end of a call. The status is CANCELLED unless another status is set."""

    method: str
    status: str = "CANCELLED"
    started_s: float = field(default_factory=time.monotonic)

    def record(self) -> None:
        """Count the call and its duration."""
        took_s = time.monotonic() - self.started_s
        call_duration.record(took_s, {"grpc.method": self.method, "grpc.status": self.status})


def _error_for_caller(error: BaseException) -> PaganticError:
    """Return the error to send to the caller. If the caller cancelled the call, re-raise the cancellation.

    gRPC does not send a status for a cancelled handler, so a caller that did not cancel would wait until its deadline.
    """
    if isinstance(error, PaganticError):
        return error
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise error
        return Unavailable("the service cancelled its own work: send the request again", retry_after_s=0.1)
    return Internal(report_bug(log, error))


async def _abort(context: Context, raised: BaseException, end: _End) -> NoReturn:
    error = _error_for_caller(raised)
    trailing: Trailing = ((DETAILS_KEY, details_of(error)), *_pushback(context, error))
    status = status_code_of(error)
    end.status = status.name
    _forget_frames(raised)
    await context.abort(status, status_message(error), trailing_metadata=trailing)
    raise AssertionError("abort returned")


def _forget_frames(error: BaseException) -> None:
    """Free the content of the frames of a handled error, such as a decoded request.

    The state of an aborted call and gRPC's own error refer to each other, and gRPC's error refers to the given error.
    All of these objects stay in memory until a garbage collection, which comes late if few objects hold many bytes.
    """
    pending: BaseException | None = error
    while pending is not None and pending.__traceback__ is not None:
        pending.__traceback__ = None
        pending = pending.__context__


def _pushback(context: Context, error: PaganticError) -> Trailing:
    """Return the trailer that sets or forbids gRPC's retry, or no trailer if gRPC's own backoff applies.

    Retries are forbidden after the deadline, and for an Unavailable with a time to wait: it usually comes from another
    service and was already retried, and retries at each hop multiply.
    """
    wait_s = error.retry_after_s
    if isinstance(error, Unavailable) and wait_s is not None:
        return _NO_RETRY
    if not isinstance(error, Overloaded):
        return ()
    if wait_s is None:
        return _NO_RETRY
    wait_s *= random.uniform(1.0, 1.25)  # noqa: S311 - so that refused callers do not all return at once
    left_s = context.time_remaining()
    if left_s is not None and left_s <= wait_s:
        return _NO_RETRY
    return ((RETRY_PUSHBACK_KEY, str(round(wait_s * 1000))),)


@contextmanager
def caller_scope(method: str, metadata: Mapping[str, Any], timeout_s: float | None) -> Iterator[None]:
    """Set correlation, trace and deadline for the enclosed work of a call.

    Raises InvalidRequest if the metadata is invalid.
    """
    traceparent = str(metadata.get(TRACEPARENT_KEY, ""))
    correlation = CorrelationContext(
        parent_span_id=span_id_of(traceparent),
        request_id=_read_id(metadata, REQUEST_ID_KEY),
        session_id=_read_id(metadata, SESSION_ID_KEY),
        step_name=_read_text(metadata, STEP_NAME_KEY),
        caused_by=_read_text(metadata, CAUSED_BY_KEY),
    )
    deadline = Deadline.after(time.monotonic(), timeout_s)
    with _span_of(method, traceparent), work_scope(correlation=correlation, deadline=deadline):
        yield


@contextmanager
def _span_of(method: str, traceparent: str) -> Iterator[None]:
    """Record a call as a span below the caller's span. If spans are not recorded, only propagate the ids."""
    if not is_recording():
        with trace_ids(traceparent):
            yield
        return
    with server_span(method, {RPC_SYSTEM: "grpc", RPC_METHOD: method}, traceparent) as served:
        try:
            yield
        except GeneratorExit:
            raise
        except BaseException as error:
            status = _status_of(error)
            served.set_attribute(RPC_STATUS, status)
            if status in _OF_THE_SERVER:
                note_error(served, error_type_of(error))
            raise
        served.set_attribute(RPC_STATUS, "OK")


# According to the conventions for calls, these statuses count as server failures.
_OF_THE_SERVER = frozenset({"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"})


def _status_of(error: BaseException) -> str:
    if isinstance(error, PaganticError):
        return status_code_of(error).name
    if isinstance(error, asyncio.CancelledError):
        return "CANCELLED"
    return "INTERNAL"


def _read_id(metadata: Mapping[str, Any], key: str) -> str:
    value: str = metadata.get(key, "")
    if not value:
        return ""
    return require_id(f"metadata {key}", value)


def _read_text(metadata: Mapping[str, Any], key: str) -> str:
    try:
        return bytes(metadata.get(key, b"")).decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"metadata {key} is not UTF-8") from None
