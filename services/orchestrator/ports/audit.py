"""Storage of the audit."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from pagantic_common.domain.calls.audit import AuditEntry, AuditRecord
from services.orchestrator.ports.page import Page


class AuditStore(Protocol):
    """An append-only chain of records for each orchestrator."""

    def add_audit_entry(self, entry: AuditEntry, *, can_wait: bool = False) -> Awaitable[None]:
        """Queue an entry. It is stored no later than work queued after it; with `can_wait`, it may wait for such work.

        The awaitable ends once the entry is stored, and raises Unavailable if that fails.
        """

    async def list_audit_records(self, *, tenant: str, limit: int, after: str) -> Page[AuditRecord]:
        """Return records by orchestrator and position; of all tenants where `tenant` is empty.

        `after` is the last page's token. Raises InvalidRequest for an invalid token.
        """
