"""Derives what is stored of a collection from its texts again, and compares."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.text.fitting import PrefixedEmbedder, TextEmbedder
from pagantic_common.domain.text.ranking import Vectors
from services.context.app.indexes import Indexes
from services.context.core.document import CollectionKey, CollectionOptions, check_collection_name
from services.context.core.search.collection_index import CollectionIndex
from services.context.core.search.terms import count_terms
from services.context.ports import ChunkStore, StoredChunk, StoredDocument

MAX_DIFFERENCES = 100
DEFAULT_SAMPLE = 32
MAX_SAMPLE = 1000
MIN_COSINE = 0.99  # of an embedding with a new one of the same text; batches round differently


@dataclass(slots=True)
class Report:
    """Counts of what was compared, and the differences, the first 100 of them in words."""

    document_count: int = 0
    chunk_count: int = 0
    embedding_count: int = 0
    difference_count: int = 0
    differences: list[str] = field(default_factory=list)

    def add(self, difference: str) -> None:
        """Note a difference."""
        self.difference_count += 1
        if len(self.differences) < MAX_DIFFERENCES:
            self.differences.append(difference)


class Verification:
    """Verifies collections."""

    def __init__(self, store: ChunkStore, indexes: Indexes, embedder: TextEmbedder) -> None:
        self._store = store
        self._indexes = indexes
        self._embedder = embedder

    async def verify(self, key: CollectionKey, embedding_sample: int) -> Report:
        """Compare every chunk with its document, and a sample of embeddings with new ones; raises NotFound.

        A sample of 0 is 32 embeddings, of -1 none.
        """
        check_collection_name("collection", key.name)
        if not -1 <= embedding_sample <= MAX_SAMPLE:
            raise InvalidRequest(f"embedding_sample is {embedding_sample}: it must be -1 to {MAX_SAMPLE}")
        index = await self._indexes.open(key)
        report = Report()
        wanted = max(0, embedding_sample or DEFAULT_SAMPLE)
        stride = max(1, index.embedded_count // max(1, wanted))
        sample: list[tuple[str, str, Vectors]] = []
        async for stored in self._store.read_documents(key):
            report.document_count += 1
            _compare(stored, index, report)
            for chunk, vector in zip(stored.chunks, stored.vectors, strict=True):
                report.chunk_count += 1
                if vector is not None and chunk.id % stride == 0 and len(sample) < wanted:
                    sample.append((_name_of(stored, chunk), chunk.chunk.content, vector))
        await self._compare_embeddings(index.options, sample, report)
        if report.chunk_count != index.live_count:
            report.add(f"the index has {index.live_count} chunks, the store {report.chunk_count}")
        return report

    async def _compare_embeddings(
        self, options: CollectionOptions, sample: list[tuple[str, str, Vectors]], report: Report
    ) -> None:
        embedder = PrefixedEmbedder(self._embedder, options.prefixes.document)
        for name, content, vector in sample:
            (again,) = await embedder.embed(options.embedding_model, [content])
            report.embedding_count += 1
            if len(again) != len(vector) or float(np.dot(again, vector)) < MIN_COSINE:
                report.add(f"{name}: the embedding is not that of its text")


def _compare(stored: StoredDocument, index: CollectionIndex, report: Report) -> None:
    document = stored.document
    if not stored.chunks and document.content.strip():
        report.add(f"document {document.source!r} has no chunks")
    for chunk, terms in zip(stored.chunks, stored.terms, strict=True):
        location = chunk.chunk.location
        if location is None or document.content[location.start : location.end] != chunk.chunk.content:
            report.add(f"{_name_of(stored, chunk)}: its content is not at its place in the document")
        if count_terms(chunk.chunk.content, index.options.language).to_bytes() != terms:
            report.add(f"{_name_of(stored, chunk)}: its terms are not those of its content")
        if not index.has_chunk(chunk.id):
            report.add(f"{_name_of(stored, chunk)}: the index does not have it")


def _name_of(stored: StoredDocument, chunk: StoredChunk) -> str:
    return f"document {stored.document.source!r}, chunk {chunk.position}"
