"""Makes the servicer of an open store and a channel to the inference service."""

from __future__ import annotations

import time

import grpc

from pagantic_common.rpc.inference_embedder import InferenceEmbedder
from services.context.adapters.inference_token_counter import InferenceTokenCounter
from services.context.adapters.store.access import StoreAccess
from services.context.adapters.store.embeddings import SqlEmbeddings
from services.context.app.building import ContextBuilding
from services.context.app.embedding import BackgroundEmbedding
from services.context.app.verification import Verification
from services.context.servicer import ContextServicer
from services.context.settings import ContextSettings
from services.context.wiring.files import FileReaders
from services.context.wiring.library import make_library
from services.context.wiring.search import Search


def make_embedding(settings: ContextSettings, access: StoreAccess, channel: grpc.aio.Channel) -> BackgroundEmbedding:
    """Make the background embedding of the store's chunks."""
    return BackgroundEmbedding(
        SqlEmbeddings(access), make_embedder(settings, channel), settings.embedding_pause_s, time.monotonic
    )


def make_servicer(
    settings: ContextSettings,
    access: StoreAccess,
    channel: grpc.aio.Channel,
    embedding: BackgroundEmbedding,
    readers: FileReaders,
) -> ContextServicer:
    """Make the servicer."""
    counter = InferenceTokenCounter(channel, settings.inference_timeout_s, settings.connect_patience_s)
    embedder = make_embedder(settings, channel)
    search = Search(access, embedder, settings.max_index_bytes)
    library = make_library(settings, access, counter)
    return ContextServicer(
        library,
        embedding,
        Verification(search.chunks, search.indexes, embedder),
        search.retrieval,
        ContextBuilding(search.retrieval, counter, settings.default_max_tokens),
        files=readers.make_ingest(library, access),
    )


def make_embedder(settings: ContextSettings, channel: grpc.aio.Channel) -> InferenceEmbedder:
    """Make the adapter of the inference service's Embed."""
    return InferenceEmbedder(channel, settings.embedding_timeout_s, settings.connect_patience_s)
