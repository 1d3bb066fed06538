"""Creates, lists and revokes API keys, and authenticates callers by them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from pagantic_common.domain.calls.api_keys import ApiKey, Refusal, StoredKey, hash_of, judge, make_key, parse_key
from pagantic_common.domain.calls.principal import DEFAULT_TENANT, Principal, Scope
from pagantic_common.domain.clock import Clock
from pagantic_common.domain.errors import ErrorCode, InvalidRequest, Unauthenticated, Unavailable
from pagantic_common.domain.ids import require_id
from pagantic_common.telemetry.logging import get_logger
from services.orchestrator.ports.keys import KeyStore
from services.orchestrator.ports.page import Page, page_limit

FRESH_S = 1.0  # time that a key is cached, which delays the effect of a revocation
STALE_S = 60.0  # maximum use of a cached key while the store cannot be read
MAX_KNOWN = 10_000
_BEARER = "bearer "
_INVALID = "the credentials are not valid: send a valid API key"

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Known:
    """A cached key and the time of its look-up."""

    stored: StoredKey
    asked_s: float


class Keys:
    """The API keys of all tenants.

    Args:
        store: Stores the keys.
        admin_keys: Returns the operator's own keys by id, which are not in the store.
        clock: Supplies the current time.
        random_bytes: Returns the given number of unpredictable bytes.
    """

    def __init__(
        self,
        store: KeyStore,
        admin_keys: Callable[[], Mapping[str, StoredKey]],
        clock: Clock,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._store = store
        self._admin_keys = admin_keys
        self._clock = clock
        self._random_bytes = random_bytes
        self._known: dict[str, _Known] = {}
        self._asking: dict[str, asyncio.Future[StoredKey | None]] = {}

    async def authenticate(self, credentials: str) -> Principal:
        """Return the holder of the key in `credentials`, which have the form "Bearer pag_...".

        Raises Unauthenticated if the key is rejected, and Unavailable while the store cannot be read. The reason for a
        rejection appears only in the log.
        """
        if not credentials:
            raise Unauthenticated("the call has no credentials: send an API key", code=ErrorCode.AUTH_MISSING)
        key = parse_key(credentials[len(_BEARER) :].strip())
        if key is None or not credentials.lower().startswith(_BEARER):
            raise _refused(Refusal(ErrorCode.AUTH_INVALID, "it is not of the form of a key"), "")
        judged = judge(key, await self._find(key), self._clock.now().timestamp())
        if isinstance(judged, Refusal):
            raise _refused(judged, key.key_id)
        return judged

    async def create(
        self, tenant: str, subject: str, scopes: frozenset[Scope], lifetime_s: float | None
    ) -> tuple[StoredKey, str]:
        """Store a new key, and return it with its text. Raises InvalidRequest if an argument is invalid."""
        require_id("tenant", tenant or DEFAULT_TENANT)
        require_id("subject", subject)
        if not scopes:
            raise InvalidRequest("scopes is empty: name at least one")
        if lifetime_s == 0:
            raise InvalidRequest("lifetime is 0: leave it unset for a key that does not expire")
        key, now_s = make_key(self._random_bytes), self._clock.now().timestamp()
        expires_at = now_s + lifetime_s if lifetime_s is not None else None
        stored = StoredKey(
            tenant or DEFAULT_TENANT, key.key_id, subject, scopes, hash_of(key.secret), now_s, expires_at
        )
        await self._store.add_key(stored)
        log.info("a key was created", key_id=key.key_id, tenant=stored.tenant, subject=subject)
        return stored, key.text

    async def list_keys(self, tenant: str, page_size: int, page_token: str) -> Page[StoredKey]:
        """Return a page of a tenant's stored keys, or of all stored keys if `tenant` is empty.

        Raises InvalidRequest if an argument is invalid.
        """
        if tenant:
            require_id("tenant", tenant)
        return await self._store.list_keys(tenant=tenant, limit=page_limit(page_size), after=page_token)

    async def revoke(self, key_id: str) -> StoredKey:
        """Revoke a key and return it. The revocation takes effect in all orchestrators within FRESH_S.

        Raises NotFound if the key does not exist.
        """
        stored = await self._store.revoke_key(require_id("key_id", key_id), self._clock.now().timestamp())
        self._known.pop(key_id, None)
        log.info("a key was revoked", key_id=key_id, tenant=stored.tenant, subject=stored.subject)
        return stored

    async def _find(self, key: ApiKey) -> StoredKey | None:
        if admin_key := self._admin_keys().get(key.key_id):
            return admin_key
        entry, now_s = self._known.get(key.key_id), self._clock.monotonic_s()
        if entry is not None and now_s - entry.asked_s < FRESH_S:
            return entry.stored
        try:
            stored = await self._ask(key.key_id)
        except Unavailable:
            if entry is None or now_s - entry.asked_s > STALE_S:
                raise
            return entry.stored
        self._known.pop(key.key_id, None)
        if stored is not None:  # Unknown ids are not cached, because anybody can invent them.
            if len(self._known) >= MAX_KNOWN:
                del self._known[next(iter(self._known))]
            self._known[key.key_id] = _Known(stored, now_s)
        return stored

    async def _ask(self, key_id: str) -> StoredKey | None:
        """Return a stored key, or None if its id is unknown. Concurrent look-ups of a key share one query."""
        asking = self._asking.get(key_id)
        if asking is None:
            asking = asyncio.ensure_future(self._store.find_key(key_id))
            self._asking[key_id] = asking
            asking.add_done_callback(partial(self._forget_asking, key_id))
        return await asyncio.shield(asking)

    def _forget_asking(self, key_id: str, asked: asyncio.Future[StoredKey | None]) -> None:
        del self._asking[key_id]
        if not asked.cancelled():
            asked.exception()  # Mark the exception as retrieved, because all callers may have been cancelled.


def _refused(refusal: Refusal, key_id: str) -> Unauthenticated:
    log.warning("credentials refused", reason=refusal.reason, key_id=key_id)
    if refusal.code is ErrorCode.AUTH_EXPIRED:
        return Unauthenticated("the API key has expired: have another one created", code=refusal.code)
    return Unauthenticated(_INVALID, code=refusal.code)
