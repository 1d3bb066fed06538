"""What a caller has kept with an execution: its request, and notes of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.ids import require_id

MAX_METADATA = 64
MAX_METADATA_BYTES = 64 * 1024  # of all values, as UTF-8


@dataclass(frozen=True, slots=True)
class KeptRequest:
    """A request as it was sent, encoded and without its metadata, and its metadata."""

    encoded: bytes
    metadata: Mapping[str, str] = field(default_factory=dict)


def check_metadata(metadata: Mapping[str, str]) -> None:
    """Raise InvalidRequest for metadata that cannot be kept."""
    for key in metadata:
        require_id("metadata key", key)
    used_bytes = sum(len(value.encode()) for value in metadata.values())
    if len(metadata) > MAX_METADATA or used_bytes > MAX_METADATA_BYTES:
        raise InvalidRequest(
            f"metadata has {len(metadata)} values of {used_bytes} bytes: at most {MAX_METADATA} of "
            f"{MAX_METADATA_BYTES} bytes in all are kept"
        )
