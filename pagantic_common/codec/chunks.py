"""Chunks <-> the domain."""

from __future__ import annotations

from pagantic.common.v1 import chunk_pb2
from pagantic_common.domain.chunks import Chunk


def chunk_to_proto(chunk: Chunk) -> chunk_pb2.Chunk:
    """Encode a chunk."""
    return chunk_pb2.Chunk(
        id=chunk.id,
        content=chunk.content,
        source=chunk.source,
        score=chunk.score,
        score_kind=chunk.score_kind,
        metadata_json=chunk.metadata_json,
    )


def chunk_from_proto(chunk: chunk_pb2.Chunk) -> Chunk:
    """Decode a chunk."""
    return Chunk(
        id=chunk.id,
        content=chunk.content,
        source=chunk.source,
        score=chunk.score,
        score_kind=chunk.score_kind,
        metadata_json=chunk.metadata_json,
    )
