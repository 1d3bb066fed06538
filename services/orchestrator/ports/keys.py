"""Storage of API keys."""

from __future__ import annotations

from typing import Protocol

from pagantic_common.domain.calls.api_keys import StoredKey
from services.orchestrator.ports.page import Page


class KeyStore(Protocol):
    """Stores the API keys of all tenants, without their secrets."""

    async def add_key(self, key: StoredKey) -> None:
        """Store a new key."""

    async def find_key(self, key_id: str) -> StoredKey | None:
        """Return a key, or None if its ID is unknown."""

    async def list_keys(self, *, tenant: str, limit: int, after: str) -> Page[StoredKey]:
        """Return keys, oldest first. If `tenant` is empty, return the keys of all tenants.

        `after` is the token from the previous page. Raises InvalidRequest if the token is invalid.
        """

    async def revoke_key(self, key_id: str, now_s: float) -> StoredKey:
        """Revoke a key unless it is already revoked, and return it. Raises NotFound if the key does not exist."""
