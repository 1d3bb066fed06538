"""Makes the servicer of an open store and a channel to the inference service."""

from __future__ import annotations

import grpc

from services.context.adapters.inference_token_counter import InferenceTokenCounter
from services.context.adapters.store.access import StoreAccess
from services.context.app.building import ContextBuilding
from services.context.app.embedding import BackgroundEmbedding
from services.context.app.verification import Verification
from services.context.servicer import ContextServicer
from services.context.settings import ContextSettings
from services.context.wiring.embedding import make_embedder
from services.context.wiring.files import FileReaders
from services.context.wiring.library import make_library
from services.context.wiring.search import Search


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
    library = make_library(settings, access, counter, embedder)
    return ContextServicer(
        library,
        embedding,
        Verification(search.chunks, search.indexes, embedder),
        search.retrieval,
        ContextBuilding(search.retrieval, counter, settings.default_max_tokens),
        files=readers.make_ingest(library, access),
    )
