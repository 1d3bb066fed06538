"""Converts chunks between protobuf messages and domain types."""

from __future__ import annotations

from pagantic.common.v1 import chunk_pb2
from pagantic_common.domain.chunks import Chunk, ChunkLocation


def chunk_to_proto(chunk: Chunk) -> chunk_pb2.Chunk:
    """Encode a chunk."""
    encoded = chunk_pb2.Chunk(
        id=chunk.id,
        content=chunk.content,
        source=chunk.source,
        score=chunk.score,
        score_kind=chunk.score_kind,
        metadata_json=chunk.metadata_json,
    )
    if (location := chunk.location) is not None:
        encoded.location.CopyFrom(
            chunk_pb2.ChunkLocation(
                start=location.start, end=location.end, page=location.page, heading=location.heading
            )
        )
    return encoded


def chunk_from_proto(chunk: chunk_pb2.Chunk) -> Chunk:
    """Decode a chunk."""
    location: ChunkLocation | None = None
    if chunk.HasField("location"):
        place = chunk.location
        location = ChunkLocation(place.start, place.end, place.page, place.heading)
    return Chunk(
        id=chunk.id,
        content=chunk.content,
        source=chunk.source,
        score=chunk.score,
        score_kind=chunk.score_kind,
        metadata_json=chunk.metadata_json,
        location=location,
    )
