"""Errors as Ollama's API says them."""

from __future__ import annotations

from typing import Any


def error_body(described: dict[str, Any], _status: int, _request_id: str) -> dict[str, Any]:
    """Return the body for an error: its text, and the fields that this API lacks.

    Args:
        described: The object `error` of OpenAI's API.
    """
    extension = {"code": described["code"], **described.get("pagantic", {})}
    return {"error": described["message"], "pagantic": extension}
