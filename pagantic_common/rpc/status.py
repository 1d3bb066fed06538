"""Converts errors to and from gRPC statuses.

A status is a `google.rpc.Status` with ErrorInfo, the SystemError and, if waiting helps, RetryInfo.
"""

from __future__ import annotations

import re
import string
import urllib.parse
from dataclasses import replace

import grpc
from google.protobuf import any_pb2, duration_pb2, message
from google.rpc import error_details_pb2, status_pb2

from pagantic.common.v1 import error_pb2
from pagantic_common.codec.errors import failure_from_proto, failure_to_proto
from pagantic_common.domain import errors
from pagantic_common.domain.errors import ErrorCategory, ErrorCode, Failure, MessageTooLarge, PaganticError, Unreachable
from pagantic_common.telemetry.names import ERROR_DOMAIN

DETAILS_KEY = "grpc-status-details-bin"
# gRPC refuses headers above 8 KiB in total. The details contain the message twice, and base64 adds a third. The message
# is also sent outside the details, with three bytes for each byte that is not ASCII.
MAX_STATUS_BYTES = 3072
MAX_MESSAGE_BYTES = 900
MAX_CAUSE_BYTES = 200
MAX_HEADER_BYTES = 900
CUT = " … (truncated)"
UNREACHABLE_RETRY_AFTER_S = 1.0

STATUS_OF_CLASS: dict[type[PaganticError], grpc.StatusCode] = {
    errors.InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    errors.NotFound: grpc.StatusCode.NOT_FOUND,
    errors.PreconditionFailed: grpc.StatusCode.FAILED_PRECONDITION,
    errors.Conflict: grpc.StatusCode.ALREADY_EXISTS,
    errors.Aborted: grpc.StatusCode.ABORTED,
    errors.Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    errors.PermissionDenied: grpc.StatusCode.PERMISSION_DENIED,
    errors.Overloaded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.Unavailable: grpc.StatusCode.UNAVAILABLE,
    errors.DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.Cancelled: grpc.StatusCode.CANCELLED,
    errors.Unsupported: grpc.StatusCode.UNIMPLEMENTED,
    errors.Internal: grpc.StatusCode.INTERNAL,
}
_CLASS_OF_STATUS = {status: cls for cls, status in STATUS_OF_CLASS.items()}


_TOO_LARGE = "larger than max"  # This is gRPC's wording. This system's services attach details.


_FAILED_ADDRESS = re.compile(r"ipv[46]:(\S+?:\d+)(?=:?[\s;,]|$)")
_LOST = re.compile(r"(?i)socket closed|stream removed|cancelling all calls|connection reset|broken pipe|goaway|eof")


_CLASS_OF_CODE: dict[ErrorCode, type[PaganticError]] = {
    ErrorCode.INFERENCE_ENGINE_ERROR: errors.Internal,
    ErrorCode.INFERENCE_MALFORMED_RESPONSE: errors.Internal,
    ErrorCode.INFERENCE_MODEL_UNAVAILABLE: errors.Unavailable,
    ErrorCode.INFERENCE_OVERLOADED: errors.Overloaded,
    ErrorCode.INFERENCE_CONTEXT_EXCEEDED: errors.InvalidRequest,
    ErrorCode.INFERENCE_OUTPUT_TRUNCATED: errors.InvalidRequest,
    ErrorCode.TOOL_INVALID_ARGUMENTS: errors.InvalidRequest,
    ErrorCode.TOOL_NOT_FOUND: errors.NotFound,
    ErrorCode.TOOL_EXECUTION_FAILED: errors.PreconditionFailed,
    ErrorCode.TOOL_TIMEOUT: errors.DeadlineExceeded,
    ErrorCode.TOOL_UNAVAILABLE: errors.Unavailable,
    ErrorCode.TOOL_DENIED: errors.PermissionDenied,
    ErrorCode.TOOL_OUTCOME_UNKNOWN: errors.PreconditionFailed,
    ErrorCode.ORCHESTRATION_STEP_MISMATCH: errors.PreconditionFailed,
    ErrorCode.ORCHESTRATION_ITERATION_LIMIT: errors.PreconditionFailed,
    ErrorCode.ORCHESTRATION_NO_CONSENSUS: errors.PreconditionFailed,
    ErrorCode.ORCHESTRATION_PLAN_REJECTED: errors.PreconditionFailed,
    ErrorCode.ORCHESTRATION_NOT_ANSWERABLE: errors.PreconditionFailed,
    ErrorCode.ORCHESTRATION_TURN_WAITING: errors.PreconditionFailed,
    ErrorCode.ORCHESTRATION_DEPENDENCY_UNAVAILABLE: errors.Unavailable,
    ErrorCode.ORCHESTRATION_DEPENDENCY_FAILED: errors.Internal,
    ErrorCode.ORCHESTRATION_STEP_TIMEOUT: errors.DeadlineExceeded,
    ErrorCode.CONFIG_MODEL_NOT_FOUND: errors.NotFound,
    ErrorCode.CONFIG_MODEL_CORRUPT: errors.PreconditionFailed,
    ErrorCode.CONFIG_NO_SPACE: errors.PreconditionFailed,
    ErrorCode.CONFIG_SOURCE_UNAVAILABLE: errors.Unavailable,
    ErrorCode.CONFIG_SOURCE_DENIED: errors.PermissionDenied,
    ErrorCode.CANCELLED_TIMEOUT: errors.DeadlineExceeded,
    ErrorCode.CANCELLED_SIGNAL: errors.Cancelled,
    ErrorCode.AUTH_MISSING: errors.Unauthenticated,
    ErrorCode.AUTH_INVALID: errors.Unauthenticated,
    ErrorCode.AUTH_EXPIRED: errors.Unauthenticated,
    ErrorCode.AUTH_DENIED: errors.PermissionDenied,
    ErrorCode.AUTH_POLICY: errors.PermissionDenied,
    ErrorCode.QUOTA_RATE: errors.Overloaded,
    ErrorCode.QUOTA_CONCURRENCY: errors.Overloaded,
    ErrorCode.QUOTA_BUDGET: errors.Overloaded,
    ErrorCode.QUOTA_STORAGE: errors.Overloaded,
    ErrorCode.GUARD_BLOCKED: errors.PermissionDenied,
}


_REQUEST_CATEGORIES = frozenset(
    {ErrorCategory.CONSTRAINT_FAILURE, ErrorCategory.VALIDATION_FAILURE, ErrorCategory.CONFIGURATION_FAILURE}
)


def error_of(failure: Failure) -> PaganticError:
    """Return the exception for a failure. It is Internal if the code is unknown."""
    if failure.code in _CLASS_OF_CODE:
        return _CLASS_OF_CODE[failure.code](failure=failure)
    if failure.category in _REQUEST_CATEGORIES:
        return errors.InvalidRequest(failure=failure)
    return errors.Internal(failure=failure)


def status_code_of(error: PaganticError) -> grpc.StatusCode:
    """Return the status of the error's class."""
    statuses = (STATUS_OF_CLASS[cls] for cls in type(error).__mro__ if cls in STATUS_OF_CLASS)
    return next(statuses, grpc.StatusCode.UNKNOWN)


def status_message(error: PaganticError) -> str:
    """Return the message for the status, at most 900 bytes in transit. The details contain more of the message."""
    text = str(error).encode(errors="replace").decode()  # A lone surrogate cannot be sent.
    while len(urllib.parse.quote(text, safe=string.printable)) > MAX_HEADER_BYTES:
        text = cut_text(text, max(len(CUT.encode()), len(text.encode()) * 2 // 3))
    return text


def cut_text(text: str, max_bytes: int) -> str:
    """Return the text in at most `max_bytes` of UTF-8, with a mark if it was cut. The mark must fit."""
    encoded = text.encode(errors="replace")
    if len(encoded) <= max_bytes:
        return encoded.decode()
    return encoded[: max_bytes - len(CUT.encode())].decode(errors="ignore") + CUT


def details_of(error: PaganticError) -> bytes:
    """Encode the error as `google.rpc.Status` of at most 3 KiB. Shortened texts are marked."""
    causes = tuple(
        replace(cause, message=cut_text(cause.message, MAX_MESSAGE_BYTES)) for cause in error.failure.caused_by
    )
    failure = replace(error.failure, message=cut_text(error.failure.message, MAX_MESSAGE_BYTES), caused_by=causes)
    encoded = _encode(error, failure)
    if len(encoded) > MAX_STATUS_BYTES:
        causes = tuple(
            replace(cause, message=cut_text(cause.message, MAX_CAUSE_BYTES), details={}) for cause in failure.caused_by
        )
        failure = replace(failure, details={"truncated": True}, caused_by=causes)
        encoded = _encode(error, failure)
    if len(encoded) > MAX_STATUS_BYTES:
        encoded = _encode(error, replace(failure, caused_by=()))
    return encoded


def restore_error(service: str, error: grpc.aio.AioRpcError) -> PaganticError:
    """Return the exception that the called service raised.

    Without details from the service, return an exception for the transport's error, which names `service`.
    """
    failure, retry_after_s = _decode(error)
    if failure is None:
        return _transport_error(service, error.code(), error.details() or "no details")
    return _class_of(error.code())(failure=failure, retry_after_s=retry_after_s)


def _class_of(status: grpc.StatusCode) -> type[PaganticError]:
    return _CLASS_OF_STATUS.get(status, errors.Internal)


def _transport_error(service: str, status: grpc.StatusCode, text: str) -> PaganticError:
    if status is grpc.StatusCode.RESOURCE_EXHAUSTED and _TOO_LARGE in text:
        return MessageTooLarge(f"a message to or from the {service} service is too large: {_sizes_of(text)}")
    if status is grpc.StatusCode.UNAVAILABLE:
        message = f"the {service} service cannot be reached: {_plain_reason(text)}"
        return Unreachable(message, retry_after_s=UNREACHABLE_RETRY_AFTER_S)
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return no_answer(service)
    cls = _class_of(status)
    if cls is errors.Internal:
        return cls(f"the {service} service failed: {text}")
    return cls(text)


def no_answer(service: str) -> errors.DeadlineExceeded:
    """Return the error for a call that was not answered in time."""
    return errors.DeadlineExceeded(f"the {service} service did not answer within the time given")


def _plain_reason(text: str) -> str:
    """Return the reason why no service answers, in plain words, or gRPC's text if the reason is unknown."""
    if match := _FAILED_ADDRESS.search(text):
        address = urllib.parse.unquote(match[1])
        return f"nothing answers at {address}"
    if "DNS" in text or "name resolution" in text.lower():
        return "its host name is not known"
    if _LOST.search(text):
        return "the connection was lost"
    return text


def _sizes_of(text: str) -> str:
    """Return the size of a message and its limit, read from gRPC's text."""
    sizes = re.findall(r"\d+", text)
    if len(sizes) <= 1:
        return "send less, or raise MAX_MESSAGE_BYTES"
    return f"{sizes[0]} bytes, at most {sizes[1]} are taken"


def _encode(error: PaganticError, failure: Failure) -> bytes:
    reason = status_code_of(error).name
    if failure.code is not None:
        reason = failure.code.value
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
                retry_after_s = max(0.0, retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9)
    return failure, retry_after_s
