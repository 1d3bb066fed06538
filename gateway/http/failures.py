"""Converts failures to HTTP: a status, and an error in the form of OpenAI's API with the system's error code."""

from __future__ import annotations

from typing import Any, NotRequired

from gateway.http.bodies import AnswerShape
from gateway.web.refusal import Refusal
from pagantic_common.domain import errors
from pagantic_common.domain.errors import ErrorCategory, ErrorCode, MessageTooLarge, PaganticError
from pagantic_common.rpc.status import status_code_of

CLIENT_LEFT = 499
_ANSWER_FAILED = 500
# A status assigns responsibility: 4xx to the request, and 5xx to the system, its tools or its model.
_STATUS_OF_CODE: dict[ErrorCode | None, int] = {
    # The model's answer does not satisfy the contract, or the model does not finish.
    ErrorCode.CONSTRAINT_GRAMMAR_REJECTED: _ANSWER_FAILED,
    ErrorCode.CONSTRAINT_SCHEMA_INVALID: _ANSWER_FAILED,
    ErrorCode.CONSTRAINT_JSON_INVALID: _ANSWER_FAILED,
    ErrorCode.CONSTRAINT_ENUM_UNRECOGNIZED: _ANSWER_FAILED,
    ErrorCode.VALIDATION_RULE_FAILED: _ANSWER_FAILED,
    ErrorCode.VALIDATION_SEMANTIC_FAILED: _ANSWER_FAILED,
    ErrorCode.ORCHESTRATION_ITERATION_LIMIT: _ANSWER_FAILED,
    ErrorCode.ORCHESTRATION_NO_CONSENSUS: _ANSWER_FAILED,
    # A tool or another service failed.
    ErrorCode.TOOL_EXECUTION_FAILED: 502,
    ErrorCode.TOOL_OUTCOME_UNKNOWN: 502,
    ErrorCode.ORCHESTRATION_DEPENDENCY_FAILED: 502,
    # The caller cannot repair the deployment's files and disk.
    ErrorCode.CONFIG_MODEL_CORRUPT: 500,
    ErrorCode.CONFIG_NO_SPACE: 507,
    # The request is understood but cannot be carried out.
    ErrorCode.ORCHESTRATION_NOT_ANSWERABLE: 422,
    ErrorCode.ORCHESTRATION_PLAN_REJECTED: 422,
    ErrorCode.ORCHESTRATION_STEP_MISMATCH: 422,
    # A tool in a body is not a resource of a path.
    ErrorCode.TOOL_NOT_FOUND: 400,
    ErrorCode.QUOTA_RATE: 429,
    ErrorCode.QUOTA_CONCURRENCY: 429,
    ErrorCode.QUOTA_BUDGET: 429,
    ErrorCode.QUOTA_STORAGE: 429,
    ErrorCode.GUARD_BLOCKED: 400,
}
_STATUS_OF_CLASS: tuple[tuple[type[PaganticError], int], ...] = (
    (MessageTooLarge, 413),
    (errors.InvalidRequest, 400),
    (errors.Unauthenticated, 401),
    (errors.PermissionDenied, 403),
    (errors.NotFound, 404),
    (errors.PreconditionFailed, 409),
    (errors.Conflict, 409),
    (errors.Aborted, 409),
    (errors.Unsupported, 501),
    (errors.Overloaded, 503),
    (errors.Unavailable, 503),
    (errors.DeadlineExceeded, 504),
    (errors.Cancelled, CLIENT_LEFT),
)
_INTERNAL = 500
_TYPE_OF_STATUS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class Cause(AnswerShape):
    """An error that led to another error."""

    code: str | None
    message: str


class ErrorDetails(AnswerShape):
    """Error details that the client's API has no field for. They are absent if the request was rejected on arrival."""

    request_id: NotRequired[str]
    retryable: NotRequired[bool]
    details: NotRequired[dict[str, Any]]
    caused_by: NotRequired[list[Cause]]


class CodedDetails(ErrorDetails):
    """Error details that the client's API has no field for, including the system's error code."""

    code: str | None


class OpenAIErrorObject(AnswerShape):
    """The error. `code` is a code of the taxonomy or the name of a gRPC status."""

    message: str
    type: str
    param: str | None
    code: str | None
    pagantic: NotRequired[ErrorDetails]


class OpenAIError(AnswerShape):
    """An error of OpenAI's API, and of every path without a different error form."""

    error: OpenAIErrorObject


_OF_ANSWERS = frozenset({ErrorCategory.CONSTRAINT_FAILURE, ErrorCategory.VALIDATION_FAILURE})


def status_of(error: PaganticError) -> int:
    """Return the HTTP status of an error."""
    if error.code is ErrorCode.CONFIG_NO_ENGINE:
        return _status_without_engine(error)
    if error.code in _STATUS_OF_CODE:
        return _STATUS_OF_CODE[error.code]
    return next((status for cls, status in _STATUS_OF_CLASS if isinstance(error, cls)), _INTERNAL)


def _status_without_engine(error: PaganticError) -> int:
    """Return the status of a failure for which no model can do the work.

    The named model is unknown or of another kind, or the deployment has no working model of the required kind.
    """
    if "unknown_model" in error.failure.details:
        return 404
    if "missing_capability" in error.failure.details:
        return 501
    if isinstance(error, errors.PreconditionFailed):
        return _INTERNAL
    return 400


def error_of(error: PaganticError, request_id: str = "") -> OpenAIErrorObject:
    """Return the `error` object of OpenAI's API, whose code is the taxonomy's code or the gRPC status name."""
    code = status_code_of(error).name
    if error.code is not None:
        code = error.code.value
    status, message = status_of(error), str(error).removeprefix("hints.")
    if status == _ANSWER_FAILED and error.failure.category in _OF_ANSWERS:
        message = f"the model's answer: {message}"
    described = _error(status, code, message)
    described["pagantic"] = {
        "request_id": request_id,
        "retryable": is_retryable(error),
        "details": dict(error.failure.details),
        "caused_by": [
            {"code": cause.code and cause.code.value, "message": cause.message} for cause in error.failure.caused_by
        ],
    }
    return described


def error_of_refusal(refusal: Refusal) -> OpenAIErrorObject:
    """Return the `error` object for a request that was rejected on arrival."""
    return _error(refusal.status, None, refusal.message)


def coded_details(error: OpenAIErrorObject) -> CodedDetails:
    """Return the details of an error that APIs other than OpenAI's have no field for."""
    return {"code": error["code"], **error.get("pagantic", {})}


def is_retryable(error: PaganticError) -> bool:
    """Return whether the same request may succeed later. For an error without a code, the class decides."""
    if error.code is not None:
        return error.failure.retryable
    return isinstance(error, errors.Unavailable | errors.Overloaded | errors.Aborted)


def headers_of(error: PaganticError) -> dict[str, str]:
    """Return the headers that inform clients whether and when to retry."""
    headers = {"x-should-retry": str(is_retryable(error)).lower()}
    if error.retry_after_s:
        headers["retry-after"] = str(max(1, round(error.retry_after_s)))
    return headers | headers_of_status(status_of(error))


def headers_of_status(status: int) -> dict[str, str]:
    """Return the headers that a status requires."""
    if status == 401:  # noqa: PLR2004 - as HTTP numbers it
        return {"www-authenticate": "Bearer"}
    return {}


def _error(status: int, code: str | None, message: str) -> OpenAIErrorObject:
    if status >= _INTERNAL:
        kind = _TYPE_OF_STATUS.get(status, "server_error")
    else:
        kind = _TYPE_OF_STATUS.get(status, "invalid_request_error")
    return {"message": message, "type": kind, "param": None, "code": code}
