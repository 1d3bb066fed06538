"""The bytes that the journal stores for tenants and sessions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from services.orchestrator.core.model.keys import SessionKey


@dataclass(frozen=True, slots=True)
class TenantUse:
    """A tenant's bytes in the journal, and the journal's remaining space in bytes."""

    used_bytes: int
    room_bytes: int


class StorageUse(Protocol):
    """Counts the content of executions and conversations before encryption, plus a fixed amount for each row."""

    async def tenant_use(self, tenant: str) -> TenantUse:
        """Return the bytes of a tenant, and the remaining space in the journal."""

    async def session_bytes(self, key: SessionKey) -> int:
        """Return the bytes of a conversation; 0 if it does not exist."""
