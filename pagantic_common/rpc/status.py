"""Errors <-> gRPC statuses: `google.rpc.Status` with ErrorInfo, the SystemError, and RetryInfo where waiting helps."""

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
from pagantic_common.domain.errors import ErrorCategory, ErrorCode, Failure, PaganticError
from pagantic_common.telemetry.names import ERROR_DOMAIN

DETAILS_KEY = "grpc-status-details-bin"
# gRPC refuses headers above 8 KiB in all. Base64 adds a third to the details, which have the message twice; beside them
# it travels once more, with each byte that is not ASCII as three.
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
    ErrorCode.INFERENCE_CONTEXT_EXCEEDED: errors.InvalidRequest,
    ErrorCode.INFERENCE_OUTPUT_TRUNCATED: errors.InvalidRequest,
    ErrorCode.TOOL_INVALID_ARGUMENTS: errors.InvalidRequest,
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


_REQUEST_CATEGORIES = frozenset(
    {ErrorCategory.CONSTRAINT_FAILURE, ErrorCategory.VALIDATION_FAILURE, ErrorCategory.CONFIGURATION_FAILURE}
)


def error_of(failure: Failure) -> PaganticError:
    """Return the exception that stands for a failure; a code that is not known is nobody's fault but the service's."""
    if failure.code in _CLASS_OF_CODE:
        return _CLASS_OF_CODE[failure.code](failure=failure)
    is_of_request = failure.category in _REQUEST_CATEGORIES
    return errors.InvalidRequest(failure=failure) if is_of_request else errors.Internal(failure=failure)


def status_code_of(error: PaganticError) -> grpc.StatusCode:
    """Return the status of the error's class."""
    statuses = (STATUS_OF_CLASS[cls] for cls in type(error).__mro__ if cls in STATUS_OF_CLASS)
    return next(statuses, grpc.StatusCode.UNKNOWN)


def status_message(error: PaganticError) -> str:
    """Return the status' message: at most 900 bytes as they travel; the details have more of it."""
    text = str(error).encode(errors="replace").decode()  # half of a surrogate pair cannot be sent
    while len(urllib.parse.quote(text, safe=string.printable)) > MAX_HEADER_BYTES:
        text = cut_text(text, max(len(CUT.encode()), len(text.encode()) * 2 // 3))
    return text


def cut_text(text: str, max_bytes: int) -> str:
    """Return the text in at most `max_bytes` of UTF-8, which is more than the words that say that it was cut."""
    encoded = text.encode(errors="replace")
    if len(encoded) <= max_bytes:
        return encoded.decode()
    return encoded[: max_bytes - len(CUT.encode())].decode(errors="ignore") + CUT


def details_of(error: PaganticError) -> bytes:
    """Encode the error as `google.rpc.Status` of at most 3 KiB; what was cut says so."""
    causes = tuple(replace(one, message=cut_text(one.message, MAX_MESSAGE_BYTES)) for one in error.failure.caused_by)
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
                retry_after_s = max(0.0, retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9)
    return failure, retry_after_s
