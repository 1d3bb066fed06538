"""Options that a request has for the engine of a remote model, as the orchestrator and inference read them."""

from __future__ import annotations

from typing import Any

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.text.json_text import JsonTextError, parse_json

MAX_OPTIONS_BYTES = 16 * 1024


def parse_options(field: str, text: str) -> dict[str, Any]:
    """Return the options by name, none for an empty text.

    Raises InvalidRequest, which names `field`, for a text above 16 KiB or without a JSON object.
    """
    if not text:
        return {}
    if (size := len(text.encode())) > MAX_OPTIONS_BYTES:
        raise InvalidRequest(f"{field} has {size} bytes: it takes at most {MAX_OPTIONS_BYTES}")
    try:
        options = parse_json(text, is_rewritable=True)
    except JsonTextError as error:
        raise InvalidRequest(f"{field} is not JSON: {error}") from None
    if not isinstance(options, dict):
        raise InvalidRequest(f"{field} is not a JSON object")
    return options
