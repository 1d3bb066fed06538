"""The ranges of sampling parameters, and the options for the engines of remote models, as all services read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.text.json_text import JsonTextError, parse_json

# The lowest value, whether it is excluded, and the highest value.
SAMPLING_RANGES: Mapping[str, tuple[float, bool, float]] = {
    "temperature": (0.0, False, 2.0),
    "top_p": (0.0, True, 1.0),
    "top_k": (0, False, 2**31 - 1),
    "min_p": (0.0, False, 1.0),
    "repetition_penalty": (0.1, False, 2.0),  # It divides logits, which a divisor near 0 would make infinite.
    "presence_penalty": (-2.0, False, 2.0),
    "frequency_penalty": (-2.0, False, 2.0),
}


def check_sampling_value(field: str, name: str, value: float) -> None:
    """Raise InvalidRequest if a value of the parameter `name` is out of range. The message calls it `field`."""
    low, is_exclusive, high = SAMPLING_RANGES[name]
    if low < value <= high or (value == low and not is_exclusive):
        return
    bound = f"between {low:g} and"
    if is_exclusive:
        bound = f"above {low:g} and at most"
    raise InvalidRequest(f"{field} is {value:g}: it must be {bound} {high:g}")


MAX_OPTIONS_BYTES = 16 * 1024


def parse_options(field: str, text: str) -> dict[str, Any]:
    """Return the options by name; empty for an empty text.

    Raises InvalidRequest, which names `field`, for a text that exceeds 16 KiB or is not a JSON object.
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
