"""Warnings of a response."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ResponseWarning:
    """A problem that did not fail the request; the code is stable, lower case with underscores."""

    code: str
    message: str
