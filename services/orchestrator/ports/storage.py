"""The bytes that the journal keeps of tenants and sessions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from services.orchestrator.core.model.keys import SessionKey


@dataclass(frozen=True, slots=True)
class TenantUse:
    """The bytes that a tenant has in the journal, and the bytes that the journal can still take."""

    used_bytes: int
    room_bytes: int


class StorageUse(Protocol):
    """Counts the content of executions and conversations before encryption, with a fixed amount for each row."""

    async def tenant_use(self, tenant: str) -> TenantUse:
        """Return the bytes of a tenant, and the room in the journal."""

    async def session_bytes(self, key: SessionKey) -> int:
        """Return the bytes of a conversation; 0 if it does not exist."""
