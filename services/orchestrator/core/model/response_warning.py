"""What went wrong without failing a request."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ResponseWarning:
    """Something that went wrong and did not fail the request; the code is stable, lower case with underscores."""

    code: str
    message: str
