"""Derives the data of a collection from its texts again, and compares the results with the stored data."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import numpy as np

from pagantic_common.domain.chunks import ChunkLocation
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.text.fitting import PrefixedEmbedder, TextEmbedder, embed_beginnings
from pagantic_common.domain.text.ranking import Vectors
from services.context.app.indexes import Indexes
from services.context.core.document import CollectionKey, CollectionOptions, check_collection_name
from services.context.core.search.collection_index import CollectionIndex
from services.context.core.search.terms import content_digest, count_terms
from services.context.core.splitting import uncovered
from services.context.ports import ChunkStore, DerivedChunk, StoredDocument

MAX_DIFFERENCES = 100
DEFAULT_SAMPLE = 32
MAX_SAMPLE = 1000
MIN_COSINE = 0.99  # Minimum cosine of a stored and a new embedding of one text; rounding depends on the batch.


@dataclass(slots=True)
class VerificationReport:
    """The numbers of compared items and of differences, and descriptions of the first 100 differences."""

    document_count: int = 0
    chunk_count: int = 0
    embedding_count: int = 0
    difference_count: int = 0
    differences: list[str] = field(default_factory=list)

    def add(self, difference: str) -> None:
        """Record a difference."""
        self.difference_count += 1
        if len(self.differences) < MAX_DIFFERENCES:
            self.differences.append(difference)


@dataclass(frozen=True, slots=True)
class _Sampled:
    """A stored embedding to compare with a new embedding, and the options of the collection when it was read."""

    name: str
    content: str
    vector: Vectors
    options: CollectionOptions


class Verification:
    """Verifies collections. Concurrent changes of a collection do not count as differences."""

    def __init__(self, store: ChunkStore, indexes: Indexes, embedder: TextEmbedder) -> None:
        self._store = store
        self._indexes = indexes
        self._embedder = embedder

    async def verify(self, key: CollectionKey, embedding_sample: int) -> VerificationReport:
        """Compare every chunk with its document, and a sample of embeddings with new embeddings.

        A sample of 0 means 32 embeddings, and a sample of -1 means no embeddings. Raises NotFound if the collection
        does not exist.
        """
        check_collection_name("collection", key.name)
        if not -1 <= embedding_sample <= MAX_SAMPLE:
            raise InvalidRequest(f"embedding_sample is {embedding_sample}: it must be -1 to {MAX_SAMPLE}")
        index = await self._indexes.open(key)
        report = VerificationReport()
        sample_size = max(0, embedding_sample or DEFAULT_SAMPLE)
        stride = max(1, index.embedded_count // max(1, sample_size))
        sample: list[_Sampled] = []
        seen: set[int] = set()
        async for document in self._store.read_documents(key):
            report.document_count += 1
            report.chunk_count += len(document.chunks)
            await asyncio.to_thread(_compare, document, index, report)
            seen.update(chunk.stored.id for chunk in document.chunks)
            sample += _sampled(document, stride)[: sample_size - len(sample)]
        await self._compare_embeddings(sample, report)
        if orphans := await self._store.count_orphans(key):
            report.add(f"chunks without their document: {orphans}")
        later = await self._indexes.open(key)
        if lost := await asyncio.to_thread(_count_lost, index, later, seen):
            report.add(f"chunks of the index that the store does not have: {lost}")
        return report

    async def _compare_embeddings(self, sample: Sequence[_Sampled], report: VerificationReport) -> None:
        for entry in sample:
            embedder = PrefixedEmbedder(self._embedder, entry.options.prefixes.document)
            (again,) = await embed_beginnings(embedder, entry.options.embedding_model, [entry.content])
            report.embedding_count += 1
            if len(again) != len(entry.vector) or float(np.dot(again, entry.vector)) < MIN_COSINE:
                report.add(f"{entry.name}: the embedding is not that of its text")


def _sampled(document: StoredDocument, stride: int) -> list[_Sampled]:
    return [
        _Sampled(_name_of(document, chunk), chunk.stored.chunk.content, chunk.vector, document.options)
        for chunk in document.chunks
        if chunk.vector is not None and chunk.stored.id % stride == 0
    ]


def _count_lost(index: CollectionIndex, later: CollectionIndex, seen: AbstractSet[int]) -> int:
    """Return the number of chunks in both indexes that are missing from `seen`."""
    return len(set(index.live_ids()).intersection(later.live_ids()) - seen)


def _compare(document: StoredDocument, index: CollectionIndex, report: VerificationReport) -> None:
    name = f"document {document.document.source!r}"
    # A document from an earlier version has no digest until it is ingested again.
    if document.digest not in ("", document.document.digest):
        report.add(f"{name}: its digest is not that of its text and metadata")
    _compare_coverage(name, document, report)
    is_indexed = document.version[0] == index.version[0] and document.version[1] <= index.version[1]
    for chunk in document.chunks:
        for difference in _differences_of(chunk, document):
            report.add(f"{_name_of(document, chunk)}: {difference}")
        if is_indexed and not index.has_chunk(chunk.stored.id):
            report.add(f"{_name_of(document, chunk)}: the index does not have it")


def _compare_coverage(name: str, document: StoredDocument, report: VerificationReport) -> None:
    """Report lost chunks: gaps in the positions, and parts of the text that no chunk contains."""
    text = document.document.content
    if not document.chunks and text.strip():
        report.add(f"{name} has no chunks")
        return
    positions = {chunk.stored.position for chunk in document.chunks}
    for position in sorted(set(range(max(positions, default=0))) - positions):
        report.add(f"{name}, chunk {position}: it is missing")
    for start, end in uncovered(text, [_span_of(chunk) for chunk in document.chunks]):
        report.add(f"{name}: its characters {start} to {end} are in no chunk")


def _differences_of(one: DerivedChunk, document: StoredDocument) -> Iterator[str]:
    content = one.stored.chunk.content
    start, end = _span_of(one)
    if document.document.content[start:end] != content:
        yield "its content is not at its place in the document"
    if one.content_digest != content_digest(content):
        yield "its digest is not that of its content"
    if one.terms != count_terms(content, document.options.language).to_bytes():
        yield "its terms are not those of its content"
    if document.options.embedding_model and one.vector is None and not one.is_waiting:
        yield "it has no embedding and does not wait for one: embed the collection again with Reembed"


def _span_of(one: DerivedChunk) -> tuple[int, int]:
    location = one.stored.chunk.location or ChunkLocation(0, 0)
    return location.start, location.end


def _name_of(document: StoredDocument, one: DerivedChunk) -> str:
    return f"document {document.document.source!r}, chunk {one.stored.position}"
