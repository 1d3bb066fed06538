"""Makes the library over a store."""

from __future__ import annotations

from pagantic_common.domain.text.fitting import TextEmbedder
from pagantic_common.telemetry.clock import SystemClock
from services.context.adapters.store.access import StoreAccess
from services.context.adapters.store.collections import SqlCollections
from services.context.app.library import Library
from services.context.app.word_counts import WordCounts
from services.context.core.splitting import Splitting
from services.context.ports import TokenCounter
from services.context.settings import ContextSettings


def make_library(
    settings: ContextSettings, access: StoreAccess, counter: TokenCounter, embedder: TextEmbedder
) -> Library:
    """Make the library."""
    return Library(
        SqlCollections(access, SystemClock(), settings.max_chunks_per_collection, settings.max_collections),
        WordCounts(counter),
        embedder,
        settings.ingest_bounds,
        Splitting(settings.chunk_tokens, settings.overlap_tokens),
        defaults=settings.defaults,
    )
