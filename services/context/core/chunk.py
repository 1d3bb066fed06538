"""Selects chunks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

from pagantic_common.domain.chunks import MAX_CHUNKS, Chunk

MAX_REPLY_BYTES: Final = 3 * 1024 * 1024
CHUNK_OVERHEAD_BYTES: Final = 1024  # source, id and other fields


def select_chunks(
    chunks: Iterable[Chunk], min_score: float | None, max_chunks: int, max_bytes: int = MAX_REPLY_BYTES
) -> list[Chunk]:
    """Return chunks best first, ties in their order, without duplicates and without chunks below `min_score`.

    Of chunks with the same content, or the same source and id, only the best is kept. A reply has at most 1000 chunks
    and `max_bytes`; `max_chunks` above 0 lowers the number.
    """
    max_kept = MAX_CHUNKS
    if max_chunks > 0:
        max_kept = min(max_chunks, MAX_CHUNKS)
    left_bytes = max_bytes
    kept: list[Chunk] = []
    seen: set[object] = set()
    for chunk in sorted(chunks, key=lambda chunk: -chunk.score):
        if min_score is not None and chunk.score < min_score:
            continue
        keys = {hashlib.sha256(chunk.content.encode()).digest(), (chunk.source, chunk.id)}
        if seen.isdisjoint(keys):
            left_bytes -= len(chunk.content.encode()) + len(chunk.metadata_json.encode()) + CHUNK_OVERHEAD_BYTES
            if kept and left_bytes < 0:
                break
            kept.append(chunk)
        seen |= keys
        if len(kept) == max_kept:
            break
    return kept
