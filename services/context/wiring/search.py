"""Makes the search over a store."""

from __future__ import annotations

from pagantic_common.domain.text.fitting import TextEmbedder
from services.context.adapters.store.access import StoreAccess
from services.context.adapters.store.chunks import SqlChunks
from services.context.app.indexes import Indexes
from services.context.app.retrieval import Retrieval


class Search:
    """The chunks of a store, their indexes, and retrieval from them."""

    def __init__(self, access: StoreAccess, embedder: TextEmbedder, max_index_bytes: int) -> None:
        self.chunks = SqlChunks(access)
        self.indexes = Indexes(self.chunks, max_index_bytes)
        self.retrieval = Retrieval(self.chunks, self.indexes, embedder)
