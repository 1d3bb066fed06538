"""Makes the servicer of an open store and the channels to the inference service."""

from __future__ import annotations

from pagantic_common.rpc.inference.embedder import InferenceEmbedder
from pagantic_common.rpc.inference.pools import InferencePools
from services.context.adapters.inference_token_counter import InferenceTokenCounter
from services.context.adapters.store.access import StoreAccess
from services.context.app.building import ContextBuilding
from services.context.app.embedding import BackgroundEmbedding
from services.context.app.verification import Verification
from services.context.servicer import ContextServicer
from services.context.settings import ContextSettings
from services.context.wiring.files import FileReaders
from services.context.wiring.library import make_library
from services.context.wiring.search import Search


def make_servicer(
    settings: ContextSettings,
    access: StoreAccess,
    pools: InferencePools,
    embedding: BackgroundEmbedding,
    readers: FileReaders,
) -> ContextServicer:
    """Make the servicer."""
    counter = InferenceTokenCounter(pools, settings.inference_timeout_s)
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
