"""A request as it came."""

from __future__ import annotations

from dataclasses import dataclass

from services.orchestrator.core.model.request import KeptRequest, Request


@dataclass(frozen=True, slots=True)
class Submission:
    """A request, its fingerprint and its size.

    Attributes:
        fingerprint: Hash of the payload, which must match under the same id.
        size_bytes: The encoded size.
        has_new_id: Whether the id was generated for this request, so that it cannot exist yet.
        kept: The part of the request kept with the execution; None to keep nothing.
    """

    request: Request
    fingerprint: str
    size_bytes: int = 0
    has_new_id: bool = False
    kept: KeptRequest | None = None
