"""Defines the error that rejects a request."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

RETRY_AFTER_S = 1


class Refusal(Exception):
    """Raised to reject a request before any work is done for it.

    Args:
    status: The HTTP status.
    message: The error and a remedy.
    headers: The headers of the answer.
    """

    def __init__(self, status: int, message: str, headers: Mapping[str, str] = MappingProxyType({})) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers


def overloaded(message: str) -> Refusal:
    """Return the refusal of a request that the client may send again soon."""
    return Refusal(503, message, {"retry-after": str(RETRY_AFTER_S)})
