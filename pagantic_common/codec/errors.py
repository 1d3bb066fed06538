"""SystemError <-> Failure."""

from __future__ import annotations

from typing import Any

from pagantic.common.v1 import error_pb2
from pagantic_common.domain.errors import MAX_CAUSES, ErrorCode, Failure
from pagantic_common.domain.json_text import JsonTextError, dump_json, parse_json

_CODE_PREFIX = "ERROR_CODE_"
_CATEGORY_PREFIX = "ERROR_CATEGORY_"


def error_code_to_proto(code: ErrorCode | None) -> error_pb2.ErrorCode.ValueType:
    """Encode a code; None is UNSPECIFIED."""
    return error_pb2.ErrorCode.Value(_CODE_PREFIX + (code.value if code else "UNSPECIFIED"))


def error_code_from_proto(value: int) -> ErrorCode | None:
    """Decode a code; UNSPECIFIED and codes of a newer version are None."""
    try:
        return ErrorCode(error_pb2.ErrorCode.Name(value).removeprefix(_CODE_PREFIX))  # type: ignore[arg-type]
    except ValueError:
        return None


def failure_to_proto(failure: Failure) -> error_pb2.SystemError:
    """Encode a failure and its causes."""
    category = failure.category.value if failure.category else "UNSPECIFIED"
    return error_pb2.SystemError(
        code=error_code_to_proto(failure.code),
        category=error_pb2.ErrorCategory.Value(_CATEGORY_PREFIX + category),
        retryable=failure.retryable,
        message=failure.message,
        # Half of a surrogate pair, which a caller's JSON may hold, cannot be sent.
        details_json=dump_json(dict(failure.details)).encode(errors="replace").decode() if failure.details else "",
        caused_by=[failure_to_proto(cause) for cause in failure.caused_by[:MAX_CAUSES]],
    )


def failure_from_proto(error: error_pb2.SystemError) -> Failure:
    """Decode a failure and its causes; details that are no JSON object are dropped."""
    return Failure(
        code=error_code_from_proto(error.code),
        message=error.message,
        retryable=error.retryable,
        details=_parse_details(error.details_json),
        caused_by=tuple(failure_from_proto(cause) for cause in error.caused_by[:MAX_CAUSES]),
    )


def _parse_details(text: str) -> dict[str, Any]:
    try:
        details = parse_json(text) if text else {}
    except JsonTextError:
        return {}
    return details if isinstance(details, dict) else {}
