"""Storage of the audit log."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from pagantic_common.domain.calls.audit import AuditEntry, AuditRecord
from services.orchestrator.ports.page import Page


class AuditStore(Protocol):
    """Stores an append-only chain of audit records for each orchestrator."""

    def add_audit_entry(self, entry: AuditEntry, *, can_wait: bool = False) -> Awaitable[None]:
        """Queue an entry, which is stored no later than work queued after it.

        If `can_wait` is set, the entry may wait for later work. The awaitable completes once the entry is stored, and
        raises Unavailable if the entry cannot be stored.
        """

    async def list_audit_records(self, *, tenant: str, limit: int, after: str) -> Page[AuditRecord]:
        """Return records in order of orchestrator and position. If `tenant` is empty, return records of all tenants.

        `after` is the token from the previous page. Raises InvalidRequest if the token is invalid.
        """
