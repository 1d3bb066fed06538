"""The searchable form of a collection, which is built by applying the changes of its store in order.

An index is immutable to its readers. `apply` returns the next index, which shares the unchanged parts. Only the newest
index accepts changes. A position is the index of a chunk in the order of storage and is never reused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pagantic_common.domain.text.ranking import Vectors
from pagantic_common.grammar.expressions import Expression
from services.context.core.document import CollectionOptions
from services.context.core.search.lexical_index import EMPTY, LexicalIndex, Mask
from services.context.core.search.metadata_filter import is_selected
from services.context.core.search.terms import TermCounts
from services.context.core.search.vector_index import NO_VECTORS, VectorIndex

CHUNK_BYTES = 150  # memory of a chunk in the tables of an index
DOCUMENT_BYTES = 300  # memory of a document without its metadata
MAX_FILTERS = 16

# Changes whenever a collection's chunks may have changed, also when the collection is deleted and recreated.
Version = tuple[int, int]


@dataclass(frozen=True, slots=True)
class IndexedDocument:
    """A document with the properties that filters read."""

    id: int
    source: str
    metadata_json: str


@dataclass(frozen=True, slots=True)
class IndexedChunk:
    """A chunk with a hash of its content and with its terms."""

    id: int
    document_id: int
    digest: int
    terms: TermCounts


def _no_vectors() -> Vectors:
    return np.zeros((0, 0), dtype=np.float32)


@dataclass(frozen=True, slots=True)
class IndexChanges:
    """The changes up to a version. If `is_whole`, they are the whole collection and apply to an empty index.

    `embedded_ids` holds the chunk id of each row of `vectors`.
    """

    version: Version
    options: CollectionOptions
    is_whole: bool = False
    documents: Sequence[IndexedDocument] = ()
    chunks: Sequence[IndexedChunk] = ()
    removed_document_ids: Sequence[int] = ()
    embedded_ids: Sequence[int] = ()
    vectors: Vectors = field(default_factory=_no_vectors)


class CollectionIndex:
    """The index of one version of a collection.

    Attributes:
        version: The version of the collection that this index shows.
        options: The options of the collection.
        lexical: The terms of the chunks by position.
        vectors: The embeddings of the chunks by position.
        alive: A mask that is true at the positions of live chunks.
    """

    def __init__(self, options: CollectionOptions, version: Version = (0, 0)) -> None:
        self.options = options
        self.version = version
        self.lexical: LexicalIndex = EMPTY
        self.vectors: VectorIndex = NO_VECTORS
        self.alive: Mask = np.zeros(0, dtype=np.bool_)
        self._ids: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._digests: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._owners: NDArray[np.int64] = np.zeros(0, dtype=np.int64)  # index into the document list for each position
        self._documents: list[IndexedDocument] = []
        self._document_count = 0
        self._text_chars = 0  # length of the documents' metadata and sources
        self._ordinals: dict[int, int] = {}  # index into the document list by document id
        self._positions: dict[int, int] = {}  # position of each chunk by chunk id
        self._filters: dict[str, Mask] = {}

    @property
    def size_bytes(self) -> int:
        """The estimated memory of the index in bytes."""
        tables = CHUNK_BYTES * len(self._ids) + DOCUMENT_BYTES * len(self._documents) + 2 * self._text_chars
        return self.lexical.size_bytes + self.vectors.size_bytes + tables

    @property
    def live_count(self) -> int:
        """The number of live chunks."""
        return int(np.count_nonzero(self.alive))

    @property
    def embedded_count(self) -> int:
        """The number of live chunks that have an embedding."""
        return self.vectors.count_among(self.alive)

    def apply(self, changes: IndexChanges) -> CollectionIndex:
        """Return the index that results from the changes."""
        following = CollectionIndex(changes.options, changes.version)
        following._documents, following._ordinals, following._positions = self._tables(changes)
        # A damaged store may have chunks without a document. They are left out, because they could not be cited.
        chunks = [chunk for chunk in changes.chunks if chunk.document_id in following._ordinals]
        for position, chunk in enumerate(chunks, len(self._ids)):
            following._positions[chunk.id] = position
        following._ids = _appended(self._ids, [chunk.id for chunk in chunks])
        following._digests = _appended(self._digests, [chunk.digest for chunk in chunks])
        owners = [following._ordinals[chunk.document_id] for chunk in chunks]
        following._owners = _appended(self._owners, owners)
        following._document_count = len(following._documents)
        more_chars = sum(len(document.metadata_json) + len(document.source) for document in changes.documents)
        following._text_chars = self._text_chars + more_chars
        following.alive = following._mask_of(self.alive, changes.removed_document_ids)
        following.lexical = self.lexical.extend([chunk.terms for chunk in chunks], following.alive)
        following.vectors = following._extended(self.vectors, changes)
        following._filters = dict(self._filters)
        return following

    def allowed(self, expression: Expression) -> Mask:
        """Return the mask of live chunks in the documents that the filter selects."""
        document_mask = self._filters.get(expression.text, np.zeros(0, dtype=np.bool_))
        if len(document_mask) < self._document_count:
            more = [
                is_selected(expression, document.source, document.metadata_json)
                for document in self._documents[len(document_mask) : self._document_count]
            ]
            document_mask = np.append(document_mask, more).astype(np.bool_)
            self._filters = {**dict(list(self._filters.items())[1 - MAX_FILTERS :]), expression.text: document_mask}
        allowed: Mask = self.alive & document_mask[self._owners]
        return allowed

    def has_chunk(self, chunk_id: int) -> bool:
        """Return whether searches can find the chunk."""
        position = self._positions.get(chunk_id, len(self.alive))
        return position < len(self.alive) and bool(self.alive[position])

    def live_ids(self) -> list[int]:
        """Return the ids of all chunks that searches can find."""
        return self.ids_at(np.flatnonzero(self.alive))

    def ids_at(self, positions: NDArray[np.intp]) -> list[int]:
        """Return the ids of the chunks at the positions."""
        ids: list[int] = self._ids[positions].tolist()
        return ids

    def digests_at(self, positions: NDArray[np.intp]) -> NDArray[np.int64]:
        """Return the content hashes of the chunks at the positions."""
        digests: NDArray[np.int64] = self._digests[positions]
        return digests

    def _tables(self, changes: IndexChanges) -> tuple[list[IndexedDocument], dict[int, int], dict[int, int]]:
        """Return the shared tables with the new documents. Earlier indexes do not read past their document count."""
        for document in changes.documents:
            self._ordinals[document.id] = len(self._documents)
            self._documents.append(document)
        return self._documents, self._ordinals, self._positions

    def _mask_of(self, alive: Mask, removed_document_ids: Sequence[int]) -> Mask:
        mask = np.ones(len(self._ids), dtype=np.bool_)
        mask[: len(alive)] = alive
        ordinals = [
            self._ordinals[document_id] for document_id in removed_document_ids if document_id in self._ordinals
        ]
        if ordinals:
            mask &= ~np.isin(self._owners, ordinals)
        return mask

    def _extended(self, vectors: VectorIndex, changes: IndexChanges) -> VectorIndex:
        rows = [row for row, chunk_id in enumerate(changes.embedded_ids) if chunk_id in self._positions]
        positions = [self._positions[changes.embedded_ids[row]] for row in rows]
        return vectors.extend(len(self._ids), positions, changes.vectors[rows])


def _appended(values: NDArray[np.int64], more: Sequence[int]) -> NDArray[np.int64]:
    return np.concatenate([values, np.array(more, dtype=np.int64)])
