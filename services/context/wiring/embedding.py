"""Wires the background embedding of chunks."""

from __future__ import annotations

import time

from pagantic_common.rpc.access.tenant_tokens import TenantTokens, read_signing_key
from pagantic_common.rpc.inference.embedder import InferenceEmbedder
from pagantic_common.rpc.inference.pools import InferencePools
from pagantic_common.rpc.peer import Credentials, pass_on
from pagantic_common.telemetry.clock import SystemClock
from services.context.adapters.store.access import StoreAccess
from services.context.adapters.store.embeddings import SqlEmbeddings
from services.context.app.embedding import BackgroundEmbedding
from services.context.settings import ContextSettings

LEASE_TIMEOUTS = 2  # a batch of chunks takes a single call, or a few calls if its texts are too long


def make_embedding(settings: ContextSettings, access: StoreAccess, pools: InferencePools) -> BackgroundEmbedding:
    """Make the background embedding of the store's chunks."""
    lease_s = LEASE_TIMEOUTS * settings.embedding_timeout_s
    return BackgroundEmbedding(
        SqlEmbeddings(access, SystemClock(), lease_s),
        InferenceEmbedder(pools.with_credentials(_background_credentials(settings)), settings.embedding_timeout_s),
        settings.defaults,
        settings.embedding_pause_s,
        time.monotonic,
    )


def _background_credentials(settings: ContextSettings) -> Credentials:
    """Return credentials that sign tokens for work without a caller; without a key such calls have no token.

    Raises InvalidRequest for an unusable file.
    """
    if settings.signing_key_file is None:
        return pass_on
    return TenantTokens(read_signing_key(settings.signing_key_file)).credentials
