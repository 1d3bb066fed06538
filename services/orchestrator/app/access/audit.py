"""Records the caller, method, resource and decision of each call in the audit log."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace

from pagantic_common.domain.calls.audit import AuditEntry, AuditRecord, Decision
from pagantic_common.domain.calls.principal import MAX_SUBJECT, Principal
from pagantic_common.domain.clock import Clock
from pagantic_common.domain.errors import PaganticError
from pagantic_common.domain.ids import require_id
from pagantic_common.telemetry.logging import get_logger
from pagantic_common.telemetry.scope import current_principal
from services.orchestrator.ports.audit import AuditStore
from services.orchestrator.ports.page import Page, page_limit

DENIAL_EVERY_S = 10.0  # Minimum time between equal denials in the log, so that denied callers cannot fill the disk.
MAX_DENIALS = 1024
MAX_ID_CHARS, MAX_RESOURCE_CHARS = 128, 700

log = get_logger(__name__)


class Audit:
    """Records the calls of one orchestrator. Not thread-safe: use it from a single event loop.

    Args:
        store: Stores the records.
        clock: Supplies the current time.
        is_on: Whether calls are recorded.
    """

    def __init__(self, store: AuditStore, clock: Clock, *, is_on: bool = True) -> None:
        self._store = store
        self._clock = clock
        self._is_on = is_on
        self._denied_s: dict[tuple[str, ...], float] = {}

    def note(self, method: str, resource: str = "", request_id: str = "") -> Awaitable[None]:
        """Record that the current caller was allowed, in or before the transaction that stores the call's changes.

        The awaitable raises Unavailable if the record cannot be stored.
        """
        if not self._is_on:
            return _done()
        return self._store.add_audit_entry(self._allowed(method, resource, request_id), can_wait=True)

    async def record(self, method: str, resource: str = "", request_id: str = "") -> None:
        """Record that the current caller may make a call, before the call reads or changes anything.

        Raises Unavailable if the record cannot be stored.
        """
        if self._is_on:
            await self._store.add_audit_entry(self._allowed(method, resource, request_id))

    def note_denied(self, method: str, caller: Principal | None, error: PaganticError) -> None:
        """Record the denial of a call. `method` includes its package; `caller` is None if the caller is unknown."""
        entry = self._entry(caller, method.rpartition(".")[2], Decision.DENIED)
        entry = replace(entry, code=error.code.value if error.code is not None else "")
        if self._is_on and self._is_due((entry.tenant, entry.subject, entry.key_id, entry.method, entry.code)):
            self._store.add_audit_entry(entry, can_wait=True)

    async def list_records(self, tenant: str, page_size: int, page_token: str) -> Page[AuditRecord]:
        """Return a page of a tenant's records, or of all records if `tenant` is empty.

        Raises InvalidRequest if an argument is invalid.
        """
        if tenant:
            require_id("tenant", tenant)
        return await self._store.list_audit_records(tenant=tenant, limit=page_limit(page_size), after=page_token)

    def _allowed(self, method: str, resource: str, request_id: str) -> AuditEntry:
        return replace(
            self._entry(current_principal(), method, Decision.ALLOWED),
            resource=_plain(resource, MAX_RESOURCE_CHARS),
            request_id=_plain(request_id, MAX_ID_CHARS),
        )

    def _entry(self, caller: Principal | None, method: str, decision: Decision) -> AuditEntry:
        at_us = round(self._clock.now().timestamp() * 1_000_000)
        who = ("", "", "", "")
        if caller is not None:
            who = (caller.tenant, _plain(caller.subject, MAX_SUBJECT), caller.kind.value, caller.key_id)
        return AuditEntry(at_us, *who, method=method, resource="", request_id="", decision=decision.value)

    def _is_due(self, denial: tuple[str, ...]) -> bool:
        now_s = self._clock.monotonic_s()
        if now_s - self._denied_s.get(denial, -DENIAL_EVERY_S) < DENIAL_EVERY_S:
            return False
        if len(self._denied_s) >= MAX_DENIALS:
            self._denied_s = {key: at_s for key, at_s in self._denied_s.items() if now_s - at_s < DENIAL_EVERY_S}
        if len(self._denied_s) >= MAX_DENIALS:
            log.warning("too many different denials: some are not in the audit", code=denial[-1])
            return False
        self._denied_s[denial] = now_s
        return True


def _done() -> asyncio.Future[None]:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    done.set_result(None)
    return done


def _plain(text: str, most: int) -> str:
    """Return the first `most` characters, without characters that are special in a terminal or a database."""
    return "".join(filter(str.isprintable, text[:most]))
