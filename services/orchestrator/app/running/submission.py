"""A request as it came."""

from __future__ import annotations

from dataclasses import dataclass

from services.orchestrator.core.model.request import KeptRequest, Request


@dataclass(frozen=True, slots=True)
class Submission:
    """A request, what its payload must be equal to under the same id, and how large it is.

    Attributes:
        fingerprint: Of the payload.
        size_bytes: As it was encoded.
        has_new_id: Whether its id was made for it, so that nothing else can have it.
        kept: What of it is kept with the execution; None for nothing.
    """

    request: Request
    fingerprint: str
    size_bytes: int = 0
    has_new_id: bool = False
    kept: KeptRequest | None = None
