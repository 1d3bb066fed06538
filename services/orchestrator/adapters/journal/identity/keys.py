"""Stores API keys in the journal's database."""

from __future__ import annotations

import asyncio
import math
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from sqlalchemy import Connection, Select, and_, or_, select, update

from pagantic_common.domain.calls.api_keys import StoredKey
from pagantic_common.domain.calls.principal import Scope
from pagantic_common.domain.clock import Clock
from pagantic_common.domain.errors import NotFound
from services.orchestrator.adapters.journal.access import JournalAccess
from services.orchestrator.adapters.journal.database import EVERY_TENANT
from services.orchestrator.adapters.journal.rows import wrong_token
from services.orchestrator.adapters.journal.schema import api_keys
from services.orchestrator.ports.keys import KeyStore
from services.orchestrator.ports.page import Page


class SqlKeys(JournalAccess, KeyStore):
    """Keys by id. A page token contains the time and the id of the last key.

    Keys are looked up on a separate thread, so that one caller's list does not delay the calls of all callers.
    """

    def __init__(self, url: str, owner: str, clock: Clock) -> None:
        super().__init__(url, owner, clock)
        self._looking = ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal-keys")

    async def add_key(self, key: StoredKey) -> None:
        await self._commit(lambda db: db.execute(self._insert(api_keys).values(_row_of(key))))

    async def find_key(self, key_id: str) -> StoredKey | None:
        work = partial(_find, key_id=key_id)
        return await asyncio.get_running_loop().run_in_executor(self._looking, self._read_now, work)

    async def list_keys(self, *, tenant: str, limit: int, after: str) -> Page[StoredKey]:
        made, name = api_keys.c.created_at, api_keys.c.key_id
        query = select(api_keys).order_by(made, name)
        if tenant:
            query = query.where(api_keys.c.tenant == tenant)
        if after:
            made_s, last = _place_of(after)
            query = query.where(or_(made > made_s, and_(made == made_s, name > last)))
        return await self._read(EVERY_TENANT, lambda db: _page(db, query, limit))

    async def revoke_key(self, key_id: str, now_s: float) -> StoredKey:
        revoked: StoredKey = await self._commit(lambda db: _revoke(db, key_id, now_s))
        return revoked


def _row_of(key: StoredKey) -> dict[str, Any]:
    return {
        "tenant": key.tenant,
        "key_id": key.key_id,
        "subject": key.subject,
        "scopes": " ".join(sorted(key.scopes)),
        "secret_hash": key.secret_hash,
        "created_at": key.created_at,
        "expires_at": key.expires_at,
        "revoked_at": key.revoked_at,
    }


def _key_of(row: Any) -> StoredKey:
    scopes = frozenset(Scope(name) for name in row.scopes.split())
    return StoredKey(
        row.tenant,
        row.key_id,
        row.subject,
        scopes,
        bytes(row.secret_hash),
        row.created_at,
        row.expires_at,
        row.revoked_at,
    )


def _find(db: Connection, key_id: str) -> StoredKey | None:
    row = db.execute(select(api_keys).where(api_keys.c.key_id == key_id)).first()
    if row is None:
        return None
    return _key_of(row)


def _revoke(db: Connection, key_id: str, now_s: float) -> StoredKey:
    is_valid = and_(api_keys.c.key_id == key_id, api_keys.c.revoked_at.is_(None))
    db.execute(update(api_keys).where(is_valid).values(revoked_at=now_s))
    key = _find(db, key_id)
    if key is None:
        raise NotFound(f"no key has key_id {key_id!r}")
    return key


def _page(db: Connection, found: Select[Any], limit: int) -> Page[StoredKey]:
    rows = db.execute(found.limit(limit + 1)).all()
    keys = [_key_of(row) for row in rows[:limit]]
    if len(rows) <= limit:
        return Page(keys)
    return Page(keys, f"{keys[-1].created_at.hex()}/{keys[-1].key_id}")


def _place_of(token: str) -> tuple[float, str]:
    made, separator, key_id = token.partition("/")
    try:
        made_s = float.fromhex(made)
    except (ValueError, OverflowError):
        raise wrong_token(token) from None
    if not separator or not key_id.isalnum() or not math.isfinite(made_s):
        raise wrong_token(token)
    return made_s, key_id
