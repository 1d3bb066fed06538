"""Errors <-> gRPC statuses: `google.rpc.Status` with ErrorInfo, the SystemError, and RetryInfo where waiting helps."""

from __future__ import annotations

import re
import urllib.parse
from dataclasses import replace

import grpc
from google.protobuf import any_pb2, duration_pb2, message
from google.rpc import error_details_pb2, status_pb2

from pagantic.common.v1 import error_pb2
from pagantic_common.codec.errors import failure_from_proto, failure_to_proto
from pagantic_common.codec.messages import duration_from_proto
from pagantic_common.domain import errors
from pagantic_common.domain.errors import ErrorCode, Failure, PaganticError
from pagantic_common.telemetry.names import ERROR_DOMAIN

DETAILS_KEY = "grpc-status-details-bin"
# gRPC refuses headers above 8 KiB in all; base64 adds a third, and the message travels once more beside the details.
MAX_STATUS_BYTES = 4096
MAX_MESSAGE_CHARS = 800
UNREACHABLE_RETRY_AFTER_S = 1.0

STATUS_OF_CLASS: dict[type[PaganticError], grpc.StatusCode] = {
    errors.InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    errors.NotFound: grpc.StatusCode.NOT_FOUND,
    errors.PreconditionFailed: grpc.StatusCode.FAILED_PRECONDITION,
    errors.Conflict: grpc.StatusCode.ALREADY_EXISTS,
    errors.Aborted: grpc.StatusCode.ABORTED,
    errors.PermissionDenied: grpc.StatusCode.PERMISSION_DENIED,
    errors.Overloaded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.Unavailable: grpc.StatusCode.UNAVAILABLE,
    errors.DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.Cancelled: grpc.StatusCode.CANCELLED,
    errors.Unsupported: grpc.StatusCode.UNIMPLEMENTED,
    errors.Internal: grpc.StatusCode.INTERNAL,
}
_CLASS_OF_STATUS = {status: cls for cls, status in STATUS_OF_CLASS.items()}


_TOO_LARGE = "larger than max"  # gRPC's own wording; our services attach details


_FAILED_ADDRESS = re.compile(r"ipv[46]:(\S+?:\d+)(?=:?[\s;,]|$)")
_LOST = re.compile(r"(?i)socket closed|stream removed|cancelling all calls|connection reset|broken pipe|goaway|eof")


class Unreachable(errors.Unavailable):
    """Nothing answered: the status is the transport's own, not one that a service of ours gave."""


class MessageTooLarge(errors.InvalidRequest):
    """The transport refused a message for its size."""


_CLASS_OF_CODE: dict[ErrorCode, type[PaganticError]] = {
    ErrorCode.INFERENCE_ENGINE_ERROR: errors.Internal,
    ErrorCode.INFERENCE_MALFORMED_RESPONSE: errors.Internal,
    ErrorCode.INFERENCE_MODEL_UNAVAILABLE: errors.Unavailable,
    ErrorCode.INFERENCE_OVERLOADED: errors.Overloaded,
    ErrorCode.TOOL_NOT_FOUND: errors.NotFound,
    ErrorCode.TOOL_EXECUTION_FAILED: errors.PreconditionFailed,
    ErrorCode.TOOL_TIMEOUT: errors.DeadlineExceeded,
    ErrorCode.TOOL_UNAVAILABLE: errors.Unavailable,
    ErrorCode.TOOL_DENIED: errors.PermissionDenied,
    ErrorCode.ORCHESTRATION_STEP_MISMATCH: errors.PreconditionFailed,
    ErrorCode.ORCHESTRATION_ITERATION_LIMIT: errors.PreconditionFailed,
    ErrorCode.ORCHESTRATION_NO_CONSENSUS: errors.PreconditionFailed,
    ErrorCode.ORCHESTRATION_PLAN_REJECTED: errors.PreconditionFailed,
    ErrorCode.ORCHESTRATION_DEPENDENCY_UNAVAILABLE: errors.Unavailable,
    ErrorCode.ORCHESTRATION_DEPENDENCY_FAILED: errors.Internal,
    ErrorCode.ORCHESTRATION_STEP_TIMEOUT: errors.DeadlineExceeded,
    ErrorCode.CANCELLED_TIMEOUT: errors.DeadlineExceeded,
    ErrorCode.CANCELLED_SIGNAL: errors.Cancelled,
}


def error_of(failure: Failure) -> PaganticError:
    """Return the exception that stands for a failure; codes that the table does not name are the request's fault."""
    cls = errors.Internal if failure.code is None else _CLASS_OF_CODE.get(failure.code, errors.InvalidRequest)
    return cls(failure=failure)


def status_code_of(error: PaganticError) -> grpc.StatusCode:
    """Return the status of the error's class."""
    statuses = (STATUS_OF_CLASS[cls] for cls in type(error).__mro__ if cls in STATUS_OF_CLASS)
    return next(statuses, grpc.StatusCode.UNKNOWN)


def details_of(error: PaganticError) -> bytes:
    """Encode the error as `google.rpc.Status` of at most 4 KiB; what was cut says so."""
    failure = error.failure
    if len(failure.message) > MAX_MESSAGE_CHARS:
        failure = replace(failure, message=failure.message[:MAX_MESSAGE_CHARS] + " … (truncated)")
    encoded = _encode(error, failure)
    if len(encoded) > MAX_STATUS_BYTES:
        causes = tuple(replace(cause, message=cause.message[:200], details={}) for cause in failure.caused_by)
        failure = replace(failure, details={"truncated": True}, caused_by=causes)
        encoded = _encode(error, failure)
    if len(encoded) > MAX_STATUS_BYTES:
        encoded = _encode(error, replace(failure, caused_by=()))
    return encoded


def restore_error(service: str, error: grpc.aio.AioRpcError) -> PaganticError:
    """Return the exception that the called service raised; Unreachable, naming `service`, when none did."""
    cls = _CLASS_OF_STATUS.get(error.code(), errors.Internal)
    failure, retry_after_s = _decode(error)
    if failure is None:
        text = error.details() or "no details"
        if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and _TOO_LARGE in text:
            return MessageTooLarge(f"a message to or from the {service} service is too large: {_sizes_of(text)}")
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            message = f"the {service} service cannot be reached: {_plain_reason(text)}"
            return Unreachable(message, retry_after_s=UNREACHABLE_RETRY_AFTER_S)
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return cls(f"the {service} service did not answer within the time given")
        return cls(text if cls is not errors.Internal else f"the {service} service failed: {text}")
    return cls(failure=failure, retry_after_s=retry_after_s)


def _plain_reason(text: str) -> str:
    """Return why nothing answers, without gRPC's own words where they are known."""
    if found := _FAILED_ADDRESS.search(text):
        address = urllib.parse.unquote(found[1])
        return f"nothing answers at {address}"
    if "DNS" in text or "name resolution" in text.lower():
        return "its host name is not known"
    return "the connection was lost" if _LOST.search(text) else text


def _sizes_of(text: str) -> str:
    """Return what gRPC says of a message's size and its limit, without its own words."""
    sizes = re.findall(r"\d+", text)
    return (
        f"{sizes[0]} bytes, at most {sizes[1]} are taken" if len(sizes) > 1 else "send less, or raise MAX_MESSAGE_BYTES"
    )


def _encode(error: PaganticError, failure: Failure) -> bytes:
    reason = failure.code.value if failure.code else status_code_of(error).name
    details: list[message.Message] = [error_details_pb2.ErrorInfo(reason=reason, domain=ERROR_DOMAIN)]
    details.append(failure_to_proto(failure))
    if error.retry_after_s is not None:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(round(error.retry_after_s * 1000))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    status = status_pb2.Status(code=status_code_of(error).value[0], message=failure.message)
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    encoded: bytes = status.SerializeToString()
    return encoded


def _decode(error: grpc.aio.AioRpcError) -> tuple[Failure | None, float | None]:
    failure: Failure | None = None
    retry_after_s: float | None = None
    for key, value in error.trailing_metadata() or ():
        if key != DETAILS_KEY or not isinstance(value, bytes):
            continue
        try:
            status = status_pb2.Status.FromString(value)
        except message.DecodeError:
            continue
        for detail in status.details:
            system_error, retry = error_pb2.SystemError(), error_details_pb2.RetryInfo()
            if detail.Unpack(system_error):
                failure = failure_from_proto(system_error)
            elif detail.Unpack(retry):
                retry_after_s = duration_from_proto(retry.retry_delay)
    return failure, retry_after_s
