"""The app of the context service over one database, with an embedder and a counter of tokens that tests can foresee."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

from sqlalchemy import func, select

from pagantic_common.telemetry.clock import SystemClock
from services.context.adapters.store.access import StoreAccess
from services.context.adapters.store.chunks import SqlChunks
from services.context.adapters.store.collections import SqlCollections
from services.context.adapters.store.embeddings import SqlEmbeddings
from services.context.adapters.store.schema import unembedded
from services.context.app.embedding import BackgroundEmbedding
from services.context.app.indexes import Indexes
from services.context.app.library import Library
from services.context.app.retrieval import Retrieval
from services.context.app.verification import Verification
from services.context.app.word_counts import WordCounts
from services.context.core.document import (
    MAX_COLLECTION_METADATA_BYTES,
    CollectionDefaults,
    CollectionKey,
    IngestBounds,
    Prefixes,
)
from services.context.core.policy import RetrievalPolicy, Retriever
from services.context.core.splitting import Splitting
from tests.support.embedding import FirstLetters, WordCounter

BOUNDS = IngestBounds(100, 10_000)
DEFAULTS = CollectionDefaults("letters", "none", {"asymmetric": Prefixes("query: ", "zebra: ")})
LEASE_S = 60


def key(name, tenant="acme"):
    """Name a collection of a tenant."""
    return CollectionKey(tenant, name)


class Context:
    """The app of the context service over one database.

    Attributes:
        embedder: Embeds chunks and queries.
        asked: Tells which models make embeddings when a collection is made.
    """

    def __init__(
        self,
        url,
        *,
        max_chunks=50,
        max_collections=1000,
        max_metadata_bytes=MAX_COLLECTION_METADATA_BYTES,
        max_tenant_bytes=None,
        max_index_bytes=1 << 20,
        chunk_tokens=8,
        clock=None,
        defaults=DEFAULTS,
    ):
        self.access = StoreAccess(url)
        self.embedder = FirstLetters()
        self.asked = FirstLetters()
        self.collections = SqlCollections(
            self.access,
            SystemClock(),
            max_chunks,
            max_collections=max_collections,
            max_metadata_bytes=max_metadata_bytes,
            max_tenant_bytes=max_tenant_bytes,
        )
        self.chunks = SqlChunks(self.access)
        self.embeddings = SqlEmbeddings(self.access, clock or SystemClock(), LEASE_S)
        words = WordCounts(WordCounter())
        splitting = Splitting(chunk_tokens, 0)
        self.library = Library(self.collections, words, self.asked, BOUNDS, splitting, defaults=defaults)
        self.indexes = Indexes(self.chunks, max_index_bytes)
        self.retrieval = Retrieval(self.chunks, self.indexes, self.embedder)
        self.embedding = BackgroundEmbedding(
            self.embeddings, self.embedder, defaults, 0.01, asyncio.get_running_loop().time
        )
        self.verification = Verification(self.chunks, self.indexes, self.embedder)

    async def ingest(self, *documents, name="docs", tenant="acme"):
        return await self.library.ingest(key(name, tenant), documents)

    async def find(self, query, *, name="docs", tenant="acme", **policy):
        return (await self.retrieval.retrieve(tenant, query, RetrievalPolicy(name, **policy))).chunks

    async def sources(self, query, **policy):
        return [chunk.source for chunk in await self.find(query, **policy)]

    async def embed_all(self):
        async with self.embedding_in_background():
            await self.until_embedded()

    @asynccontextmanager
    async def embedding_in_background(self):
        running = asyncio.create_task(self.embedding.run())
        yield
        running.cancel()

    async def until_embedded(self, name=None):
        while True:
            if not await self.access.read(lambda db: db.execute(select(func.count()).select_from(unembedded)).scalar()):
                return
            if name is not None and await self.sources("a", name=name, retriever=Retriever.VECTOR):
                return
            await asyncio.sleep(0.01)

    def close(self):
        self.access.close()
