"""Errors as Anthropic's API says them."""

from __future__ import annotations

from typing import Any

_TOO_LARGE = 413
_TYPES = {"server_error": "api_error"}  # The other types have the names that OpenAI's API gives them.


def error_body(described: dict[str, Any], status: int, request_id: str) -> dict[str, Any]:
    """Return the body for an error.

    Args:
        described: The object `error` of OpenAI's API.
        status: The HTTP status.
        request_id: Of the request.
    """
    kind = _TYPES.get(described["type"], described["type"])
    if status == _TOO_LARGE:
        kind = "request_too_large"
    extension = {"code": described["code"], **described.get("pagantic", {})}
    error = {"type": kind, "message": described["message"], "pagantic": extension}
    return {"type": "error", "error": error, "request_id": request_id}
