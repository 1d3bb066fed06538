"""Opens the stores of callers: API keys, and the tokens of identity providers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pagantic_common.rpc.access.gate import Authenticator
from pagantic_common.settings import Auth
from pagantic_common.telemetry.clock import SystemClock
from services.orchestrator.adapters.access.key_files import read_admin_keys
from services.orchestrator.app.access.keys import Keys
from services.orchestrator.ports.keys import KeyStore
from services.orchestrator.settings import OrchestratorSettings


@asynccontextmanager
async def open_identity(
    settings: OrchestratorSettings, store: KeyStore
) -> AsyncIterator[tuple[Keys, Authenticator | None]]:
    """Yield the API keys, and the authenticator of callers; None where AUTH is not `keys`."""
    keys = Keys(store, read_admin_keys(settings.admin_key_file), SystemClock())
    if settings.auth is not Auth.KEYS:
        yield keys, None
        return
    from services.orchestrator.adapters.oidc.tokens import knowing_tokens  # noqa: PLC0415 - it imports an HTTP client

    async with knowing_tokens(settings.oidc_issuers, keys) as authenticator:
        yield keys, authenticator
