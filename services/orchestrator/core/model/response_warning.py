"""The warnings in a response."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ResponseWarning:
    """A problem that did not fail the request.

    `code` is stable and consists of lower-case letters and underscores.
    """

    code: str
    message: str


GuardWarnings = tuple[ResponseWarning, ...]
