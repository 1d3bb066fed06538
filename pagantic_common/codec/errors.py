"""Converts failures between the protobuf message SystemError and the domain's Failure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagantic.common.v1 import error_pb2
from pagantic_common.codec.fields import EnumCodec
from pagantic_common.domain.errors import MAX_CAUSES, ErrorCategory, ErrorCode, Failure
from pagantic_common.domain.text.json_text import JsonTextError, dump_json, parse_json

_CODES = EnumCodec(error_pb2.ErrorCode, ErrorCode, "ERROR_CODE_", unknown=None)
_CATEGORIES = EnumCodec(error_pb2.ErrorCategory, ErrorCategory, "ERROR_CATEGORY_", unknown=None)


def error_code_to_proto(code: ErrorCode | None) -> error_pb2.ErrorCode.ValueType:
    """Encode a code. None becomes UNSPECIFIED."""
    return _CODES.to_proto(code)


def error_code_from_proto(value: int) -> ErrorCode | None:
    """Decode a code. UNSPECIFIED and codes of a newer version become None."""
    return _CODES.from_proto(value)


def failure_to_proto(failure: Failure) -> error_pb2.SystemError:
    """Encode a failure and its causes."""
    return error_pb2.SystemError(
        code=_CODES.to_proto(failure.code),
        category=_CATEGORIES.to_proto(failure.category),
        retryable=failure.retryable,
        message=failure.message,
        details_json=_dump_details(failure.details),
        caused_by=[failure_to_proto(cause) for cause in failure.caused_by[:MAX_CAUSES]],
    )


def optional_failure_to_proto(failure: Failure | None) -> error_pb2.SystemError | None:
    """Encode a failure. None leaves the field unset."""
    if failure is None:
        return None
    return failure_to_proto(failure)


def failure_from_proto(error: error_pb2.SystemError) -> Failure:
    """Decode a failure and its causes. Details are dropped unless they are a JSON object."""
    return Failure(
        code=error_code_from_proto(error.code),
        message=error.message,
        retryable=error.retryable,
        details=_parse_details(error.details_json),
        caused_by=tuple(failure_from_proto(cause) for cause in error.caused_by[:MAX_CAUSES]),
    )


def _dump_details(details: Mapping[str, Any]) -> str:
    if not details:
        return ""
    # A caller's JSON may contain a lone surrogate, which cannot be sent.
    return dump_json(dict(details)).encode(errors="replace").decode()


def _parse_details(text: str) -> dict[str, Any]:
    try:
        details = parse_json(text or "{}")
    except JsonTextError:
        return {}
    if not isinstance(details, dict):
        return {}
    return details
