"""A request as it was received."""

from __future__ import annotations

from dataclasses import dataclass

from services.orchestrator.core.model.request import KeptRequest, Request


@dataclass(frozen=True, slots=True)
class Submission:
    """A request, its fingerprint and its size.

    Attributes:
        fingerprint: Hash of the payload, which must match under the same id.
        size_bytes: The encoded size.
        has_new_id: Whether the id was generated for this request, so that no execution can have it yet.
        kept: The part of the request that is kept with the execution, or None if nothing is kept.
    """

    request: Request
    fingerprint: str
    size_bytes: int = 0
    has_new_id: bool = False
    kept: KeptRequest | None = None
