"""Storage of API keys."""

from __future__ import annotations

from typing import Protocol

from pagantic_common.domain.calls.api_keys import StoredKey
from services.orchestrator.ports.page import Page


class KeyStore(Protocol):
    """API keys, without their secrets, of every tenant."""

    async def add_key(self, key: StoredKey) -> None:
        """Store a new key."""

    async def find_key(self, key_id: str) -> StoredKey | None:
        """Return a key; None for an unknown id."""

    async def list_keys(self, *, tenant: str, limit: int, after: str) -> Page[StoredKey]:
        """Return keys, the oldest first; of all tenants where `tenant` is empty. `after` is the last page's token.

        Raises InvalidRequest for an invalid token.
        """

    async def revoke_key(self, key_id: str, now_s: float) -> StoredKey:
        """Revoke a key, unless it is revoked already, and return it. Raises NotFound."""
