"""Callers of a service that is reached by other services, and by callers of the edge, on one port."""

from __future__ import annotations

from contextlib import suppress

from pagantic_common.domain.calls.api_keys import PREFIX
from pagantic_common.domain.calls.principal import Principal
from pagantic_common.domain.errors import Unauthenticated
from pagantic_common.rpc.access.gate import Authenticator


class EitherAuthenticator:
    """Knows services by their tenant tokens, and all others as the orchestrator does."""

    def __init__(self, inner: Authenticator, edge: Authenticator) -> None:
        self._inner, self._edge = inner, edge

    async def authenticate(self, credentials: str) -> Principal:
        """Return the caller; raises Unauthenticated."""
        if credentials and not credentials.startswith(f"Bearer {PREFIX}_"):
            with suppress(Unauthenticated):
                return await self._inner.authenticate(credentials)
        return await self._edge.authenticate(credentials)
