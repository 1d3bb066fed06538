"""Keeps the chunks that fit into a reply."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pagantic_common.domain.chunks import Chunk

MAX_REPLY_BYTES: Final = 3 * 1024 * 1024
CHUNK_OVERHEAD_BYTES: Final = 512  # id, numbers and the names of fields


def within_reply(chunks: Iterable[Chunk], max_bytes: int = MAX_REPLY_BYTES) -> list[Chunk]:
    """Return the first chunks that fit into `max_bytes`, at least one of them."""
    left_bytes = max_bytes
    kept: list[Chunk] = []
    for chunk in chunks:
        heading = chunk.location.heading if chunk.location is not None else ""
        texts = (chunk.content, chunk.metadata_json, chunk.source, heading)
        left_bytes -= sum(len(text.encode()) for text in texts) + CHUNK_OVERHEAD_BYTES
        if kept and left_bytes < 0:
            break
        kept.append(chunk)
    return kept
