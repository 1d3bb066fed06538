"""Builds the parts of the context service: the library, the search, the file readers and background embedding."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from pagantic_common.domain.text.fitting import TextEmbedder
from pagantic_common.rpc.access.tenant_tokens import TenantTokens, read_signing_key
from pagantic_common.rpc.inference.embedder import InferenceEmbedder
from pagantic_common.rpc.inference.pools import InferencePools
from pagantic_common.rpc.peer import Credentials, pass_on
from pagantic_common.telemetry.clock import SystemClock
from pagantic_common.workers.process_workers import ProcessWorkers
from services.context.adapters.inference_token_counter import InferenceTokenCounter
from services.context.adapters.reading.file_work import read_file
from services.context.adapters.reading.incoming import TemporaryFiles
from services.context.adapters.reading.process_reading import ProcessReading
from services.context.adapters.reading.rooted_folders import RootedFolders
from services.context.adapters.store.access import StoreAccess
from services.context.adapters.store.chunks import SqlChunks
from services.context.adapters.store.collections import SqlCollections, SqlSources
from services.context.adapters.store.embeddings import SqlEmbeddings
from services.context.app.building import ContextBuilding
from services.context.app.embedding import BackgroundEmbedding
from services.context.app.file_ingest import FileIngest
from services.context.app.indexes import Indexes
from services.context.app.library import Library
from services.context.app.retrieval import Retrieval
from services.context.app.verification import Verification
from services.context.app.word_counts import WordCounts
from services.context.core.splitting import Splitting
from services.context.ports import FileReading, IncomingFiles, ServedFolders, TokenCounter
from services.context.servicer import ContextServicer
from services.context.settings import ContextSettings

COUNT_TIMEOUT_S = 10.0  # timeout of a token count
EMBEDDING_PAUSE_S = 5.0
LEASE_TIMEOUTS = 2  # a batch of chunks takes one call, or a few calls if its texts are too long


def make_embedding(
    settings: ContextSettings, access: StoreAccess, pools: InferencePools, pause_s: float
) -> BackgroundEmbedding:
    """Build the background embedding of the store's chunks."""
    lease_s = LEASE_TIMEOUTS * settings.embedding_timeout_s
    return BackgroundEmbedding(
        SqlEmbeddings(access, SystemClock(), lease_s),
        InferenceEmbedder(pools.with_credentials(_background_credentials(settings)), settings.embedding_timeout_s),
        settings.defaults,
        pause_s,
        time.monotonic,
    )


def _background_credentials(settings: ContextSettings) -> Credentials:
    """Return credentials that sign tokens for work without a caller. Without a key, these calls carry no token.

    Raises InvalidRequest if the key file is unusable.
    """
    if settings.signing_key_file is None:
        return pass_on
    return TenantTokens(read_signing_key(settings.signing_key_file)).credentials


@dataclass(frozen=True, slots=True)
class FileReaders:
    """The readers of files and the folders that they use."""

    incoming: IncomingFiles
    reading: FileReading
    folders: ServedFolders

    def make_ingest(self, library: Library, access: StoreAccess) -> FileIngest:
        """Build the ingest of files into a library."""
        return FileIngest(library, SqlSources(access), self.incoming, self.reading, self.folders)


@asynccontextmanager
async def open_readers(settings: ContextSettings) -> AsyncIterator[FileReaders]:
    """Start the processes that read files, and create a folder for files that wait to be read."""
    with TemporaryFiles(settings.max_file_bytes, has_tenants=settings.has_tenants) as incoming:
        limits = settings.worker_limits(read_file.__module__, incoming.folder)
        async with ProcessWorkers(limits, is_started_late=True) as workers:
            yield FileReaders(
                incoming,
                ProcessReading(workers, settings.reading_bounds),
                RootedFolders(settings.ingest_roots, settings.max_file_bytes),
            )


class Search:
    """The chunks of a store, their indexes and the retrieval from them."""

    def __init__(self, access: StoreAccess, embedder: TextEmbedder, max_index_bytes: int) -> None:
        self.chunks = SqlChunks(access)
        self.indexes = Indexes(self.chunks, max_index_bytes)
        self.retrieval = Retrieval(self.chunks, self.indexes, embedder)


def make_library(
    settings: ContextSettings, access: StoreAccess, counter: TokenCounter, embedder: TextEmbedder
) -> Library:
    """Build the library."""
    return Library(
        SqlCollections(
            access,
            SystemClock(),
            settings.max_chunks_per_collection,
            max_collections=settings.max_collections,
            max_tenant_bytes=settings.max_tenant_bytes,
        ),
        WordCounts(counter),
        embedder,
        settings.ingest_bounds,
        Splitting(settings.chunk_tokens, settings.overlap_tokens),
        defaults=settings.defaults,
    )


def make_servicer(
    settings: ContextSettings,
    access: StoreAccess,
    pools: InferencePools,
    embedding: BackgroundEmbedding,
    readers: FileReaders,
) -> ContextServicer:
    """Build the servicer."""
    counter = InferenceTokenCounter(pools, COUNT_TIMEOUT_S)
    embedder = InferenceEmbedder(pools, settings.embedding_timeout_s)
    search = Search(access, embedder, settings.max_index_bytes)
    library = make_library(settings, access, counter, embedder)
    return ContextServicer(
        library,
        embedding,
        Verification(search.chunks, search.indexes, embedder),
        search.retrieval,
        ContextBuilding(search.retrieval, counter, settings.default_max_tokens),
        files=readers.make_ingest(library, access),
    )
