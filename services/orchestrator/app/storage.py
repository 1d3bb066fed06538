"""Rejects new content once a tenant or a session has reached its storage limit in the journal."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

from pagantic_common.domain.errors import ErrorCode, Overloaded
from services.orchestrator.core.model.keys import SessionKey
from services.orchestrator.ports.storage import StorageUse

REFRESH_S = 5.0
READ_SHARE = 0.01  # maximum share of the time spent on reading one tenant's sum
KEPT_TENANTS = 4096
RETRY_AFTER_S = 60.0  # the interval of the purge


@dataclass(slots=True)
class StorageSum:
    """A tenant's stored bytes at the last reading, plus the bytes admitted since then."""

    used_bytes: int
    max_bytes: int
    until_s: float


class StorageQuota:
    """Bounds the bytes that the journal stores for each tenant and each session.

    A tenant's sum is read again after some seconds; in between, admissions of this process are added to it. Running
    executions are never stopped, so a tenant may exceed its limit by their content.

    Args:
        journal: Counts the bytes.
        max_tenant_bytes: The limit of a tenant. 0 permits as many bytes as are left free, so that one tenant has at
            most half of the space: the dynamic threshold of `Shares`. None means no limit.
        max_session_bytes: The limit of a session.
    """

    def __init__(self, journal: StorageUse, *, max_tenant_bytes: int | None, max_session_bytes: int) -> None:
        self._journal = journal
        self._max_tenant_bytes = max_tenant_bytes
        self._max_session_bytes = max_session_bytes
        self._uses: OrderedDict[str, StorageSum] = OrderedDict()

    async def check(self, tenant: str, size_bytes: int) -> StorageSum | None:
        """Raise Overloaded (QUOTA_STORAGE) if a tenant may not store this number of additional bytes.

        Returns the sum to which the bytes were added, or None without a limit.
        """
        if self._max_tenant_bytes is None:
            return None
        use = await self._use_of(tenant)
        if use.used_bytes + size_bytes > use.max_bytes:
            raise _full(
                f"tenant {tenant!r} has {use.used_bytes} bytes in the journal, at most {use.max_bytes} are kept "
                "(MAX_STORED_BYTES_OF_TENANT): delete sessions and executions, or wait until old executions are purged"
            )
        use.used_bytes += size_bytes
        return use

    async def check_session(self, key: SessionKey, size_bytes: int) -> StorageSum | None:
        """Raise Overloaded (QUOTA_STORAGE) if a session or its tenant may not store this number of additional bytes.

        Returns the tenant's sum to which the bytes were added, or None without a limit.
        """
        used_bytes = await self._journal.session_bytes(key)
        if used_bytes + size_bytes > self._max_session_bytes:
            raise _full(
                f"session {key.session_id!r} has {used_bytes} bytes, at most {self._max_session_bytes} are kept "
                "(MAX_SESSION_BYTES): begin another session, or remove messages of this one"
            )
        return await self.check(key.tenant, size_bytes)

    def release(self, counted: StorageSum | None, size_bytes: int) -> None:
        """Stop counting admitted bytes, because they are now in the journal.

        The bytes are subtracted from the sum to which they were added. A newer sum never contained them.
        """
        if counted is not None:
            counted.used_bytes -= size_bytes

    def forget(self, tenant: str) -> None:
        """Read the tenant's sum again at the next check, because content was deleted."""
        self._uses.pop(tenant, None)

    async def _use_of(self, tenant: str) -> StorageSum:
        now_s = asyncio.get_running_loop().time
        use, started_s = self._uses.get(tenant), now_s()
        if use is not None and started_s < use.until_s:
            return use
        if use is not None:
            use.until_s = started_s + REFRESH_S  # Other callers use the earlier sum meanwhile.
        stored = await self._journal.tenant_use(tenant)
        ended_s = now_s()
        until_s = ended_s + max(REFRESH_S, (ended_s - started_s) / READ_SHARE)
        self._uses[tenant] = use = StorageSum(stored.used_bytes, self._max_tenant_bytes or stored.room_bytes, until_s)
        self._uses.move_to_end(tenant)
        if len(self._uses) > KEPT_TENANTS:
            self._uses.popitem(last=False)
        return use


def _full(message: str) -> Overloaded:
    return Overloaded(message, code=ErrorCode.QUOTA_STORAGE, retry_after_s=RETRY_AFTER_S)
