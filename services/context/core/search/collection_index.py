"""The in-memory index of a collection, built by applying the changes of its store in order.

Readers see an immutable index. `apply` returns the next index, which shares the unchanged parts. Only the newest
index accepts changes. A position is the index of a chunk in the order of storage and is never reused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

CHUNK_BYTES = 150  # estimated memory of a chunk in the tables of an index
POSTING_BYTES = 20  # estimated memory of a chunk's term: position, count and impact, and a share of the term itself
DOCUMENT_BYTES = 300  # estimated memory of a document without its source and metadata
MAX_FILTERS = 16

# Changes whenever a collection's chunks may have changed, including when the collection is deleted and recreated.
Version = tuple[int, int]


@dataclass(frozen=True, slots=True)
class IndexedDocument:
    """A document with the properties that filters read, in UTF-8.

    A Python string with a single wide character takes up to four times the memory.
    """

    id: int
    source: bytes
    metadata_json: bytes

    @property
    def size_bytes(self) -> int:
        """The memory of the document in bytes."""
        return DOCUMENT_BYTES + len(self.source) + len(self.metadata_json)


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
    """The changes up to a version, relative to an earlier version; or the whole collection, for an empty index.

    `embedded_ids` holds the chunk id of each row of `vectors`.
    """

    version: Version
    options: CollectionOptions
    documents: Sequence[IndexedDocument] = ()
    chunks: Sequence[IndexedChunk] = ()
    removed_document_ids: Sequence[int] = ()
    embedded_ids: Sequence[int] = ()
    vectors: Vectors = field(default_factory=_no_vectors)

    @property
    def size_bytes(self) -> int:
        """The estimated memory that an index takes for the changes, in bytes."""
        text_bytes = sum(document.size_bytes - DOCUMENT_BYTES for document in self.documents)
        posting_count = sum(len(chunk.terms.ids) for chunk in self.chunks)
        return estimate_bytes(len(self.documents), text_bytes, len(self.chunks), posting_count, self.vectors.nbytes)


def estimate_bytes(
    document_count: int, text_bytes: int, chunk_count: int, posting_count: int, vector_bytes: int
) -> int:
    """Estimate the memory of an index in bytes before it is built.

    `text_bytes` is the UTF-8 size of sources and metadata. `posting_count` is the number of distinct terms per chunk,
    summed over the chunks. `vector_bytes` is the size of all vectors.
    """
    documents = DOCUMENT_BYTES * document_count + text_bytes
    return documents + CHUNK_BYTES * chunk_count + POSTING_BYTES * posting_count + vector_bytes + vector_bytes // 32


class FilterStopped(Exception):
    """The evaluation of a filter was stopped after `done` of `total` documents; the next evaluation continues there."""

    def __init__(self, done: int, total: int) -> None:
        super().__init__(f"the filter was evaluated for {done} of {total} documents")
        self.done = done
        self.total = total


def _never() -> bool:
    return False


class CollectionIndex:
    """The index of one version of a collection.

    Attributes:
        version: The version of the collection that this index represents.
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
        self._document_bytes = 0
        self._ordinals: dict[int, int] = {}  # index into the document list by document id
        self._positions: dict[int, int] = {}  # position of each chunk by chunk id
        self._filters: dict[str, Mask] = {}

    @property
    def size_bytes(self) -> int:
        """The estimated memory of the index in bytes."""
        return self.lexical.size_bytes + self.vectors.size_bytes + CHUNK_BYTES * len(self._ids) + self._document_bytes

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
        # Chunks without a document, from a damaged store, are left out, because they could not be cited.
        chunks = [chunk for chunk in changes.chunks if chunk.document_id in following._ordinals]
        for position, chunk in enumerate(chunks, len(self._ids)):
            following._positions[chunk.id] = position
        following._ids = _appended(self._ids, [chunk.id for chunk in chunks])
        following._digests = _appended(self._digests, [chunk.digest for chunk in chunks])
        owners = [following._ordinals[chunk.document_id] for chunk in chunks]
        following._owners = _appended(self._owners, owners)
        following._document_count = len(following._documents)
        following._document_bytes = self._document_bytes + sum(document.size_bytes for document in changes.documents)
        following.alive = following._mask_of(self.alive, changes.removed_document_ids)
        following.lexical = self.lexical.extend([chunk.terms for chunk in chunks], following.alive)
        following.vectors = following._extended(self.vectors, changes)
        following._filters = dict(self._filters)
        return following

    def has_evaluated(self, expression: Expression | None) -> bool:
        """Return whether `allowed` knows the result of the filter for every document."""
        return expression is None or len(self._filters.get(expression.text, ())) >= self._document_count

    def allowed(self, expression: Expression | None, must_stop: Callable[[], bool] = _never) -> Mask:
        """Return the mask of live chunks in the documents that the filter selects. None selects all documents.

        `must_stop` is called after each document. Raises FilterStopped once it returns True.
        """
        if expression is None:
            return self.alive
        document_mask = self._filters.get(expression.text, np.zeros(0, dtype=np.bool_))
        if len(document_mask) < self._document_count:
            document_mask = self._evaluated(expression, document_mask, must_stop)
            self._filters = {**dict(list(self._filters.items())[1 - MAX_FILTERS :]), expression.text: document_mask}
            if len(document_mask) < self._document_count:
                raise FilterStopped(len(document_mask), self._document_count)
        allowed: Mask = self.alive & document_mask[self._owners]
        return allowed

    def _evaluated(self, expression: Expression, document_mask: Mask, must_stop: Callable[[], bool]) -> Mask:
        """Extend the mask by the next documents until `must_stop` returns True."""
        more: list[bool] = []
        for document in self._documents[len(document_mask) : self._document_count]:
            more.append(is_selected(expression, document.source.decode(), document.metadata_json.decode()))
            if must_stop():
                break
        return np.append(document_mask, more).astype(np.bool_)

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
        """Add the new documents to the shared tables. Earlier indexes do not read past their own document count."""
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
