"""The refusal of a request that a door does not take."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType


class Refusal(Exception):
    """A request that is refused before any work is done for it.

    Args:
        status: The HTTP status.
        message: The error and a remedy.
        headers: Headers of the answer.
    """

    def __init__(self, status: int, message: str, headers: Mapping[str, str] = MappingProxyType({})) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers
