"""The stored bytes of tenants and sessions, summed from the totals in their rows."""

from __future__ import annotations

from sqlalchemy import Connection, func, select

from pagantic_common.storage.database import room_bytes
from services.orchestrator.adapters.journal.access import JournalAccess
from services.orchestrator.adapters.journal.rows import of_session
from services.orchestrator.adapters.journal.schema import executions, sessions
from services.orchestrator.core.model.keys import SessionKey
from services.orchestrator.ports.storage import StorageUse, TenantUse


class SqlStorage(JournalAccess, StorageUse):
    """Sums the sizes of a tenant's executions, using an index, and the sizes of its sessions."""

    async def tenant_use(self, tenant: str) -> TenantUse:
        return await self._read(tenant, lambda db: TenantUse(_used_bytes(db, tenant), room_bytes(db)))

    async def session_bytes(self, key: SessionKey) -> int:
        query = select(sessions.c.stored_bytes).where(of_session(sessions, key))
        return await self._read(key.tenant, lambda db: int(db.execute(query).scalar_one_or_none() or 0))


def _used_bytes(db: Connection, tenant: str) -> int:
    of_executions = func.sum(executions.c.stored_bytes + executions.c.entry_bytes)
    used = db.execute(select(of_executions).where(executions.c.tenant == tenant)).scalar_one() or 0
    of_sessions = func.sum(sessions.c.stored_bytes)
    return int(used + (db.execute(select(of_sessions).where(sessions.c.tenant == tenant)).scalar_one() or 0))
