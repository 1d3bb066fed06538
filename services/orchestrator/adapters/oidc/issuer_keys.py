"""The public keys of an identity provider, found by OpenID Connect discovery and fetched asynchronously."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import httpx
from joserfc.errors import JoseError
from joserfc.jwk import Key, KeySet, import_key
from pydantic_core import from_json

from pagantic_common.domain.errors import Unavailable
from pagantic_common.telemetry.logging import get_logger
from services.orchestrator.ports.identity import is_fetchable

FRESH_S = 600.0  # age after which the keys are refreshed in the background
IDLE_S = 1_200.0  # age, without calls in between, after which calls wait for a refresh of the keys
STALE_S = 86_400.0  # maximum use of known keys while the provider does not answer
COOL_DOWN_S = 30.0  # minimum time between two fetches, regardless of the callers' tokens
TIMEOUT_S = 5.0
MAX_BYTES = 256 * 1024
_DISCOVERY = "/.well-known/openid-configuration"

log = get_logger(__name__)


class IssuerKeys:
    """The keys of an issuer.

    Args:
        issuer: The issuer's URL, as written in its tokens.
        client: The HTTP client, which must not follow redirects.
        now_s: Returns the monotonic time.
    """

    def __init__(self, issuer: str, client: httpx.AsyncClient, now_s: Callable[[], float] = time.monotonic) -> None:
        self._issuer = issuer
        self._client = client
        self._now_s = now_s
        self._keys: KeySet | None = None
        self._fetched_s = 0.0
        self._tried_s: float | None = None
        self._has_failed = False
        self._fetching: asyncio.Task[None] | None = None

    async def keys_for(self, key_id: str | None) -> KeySet:
        """Return the keys, after a refresh if the id is unknown. Raises Unavailable if there are no usable keys.

        A caller waits only if the known keys are insufficient and a fetch may help.
        """
        if self._keys is None or self._age_s > IDLE_S or not _has(self._keys, key_id):
            await self._fetch_once()
        elif self._age_s > FRESH_S:
            self._begin_fetch()
        is_unknown = self._keys is not None and not _has(self._keys, key_id)
        if self._keys is None or self._age_s > STALE_S or (is_unknown and self._has_failed):
            raise Unavailable(
                f"the keys of the identity provider {self._issuer} cannot be fetched", retry_after_s=COOL_DOWN_S
            )
        return self._keys

    async def close(self) -> None:
        """Cancel a fetch that is in progress."""
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait([self._fetching])

    @property
    def _age_s(self) -> float:
        return self._now_s() - self._fetched_s

    async def _fetch_once(self) -> None:
        """Fetch the keys once for all waiting callers."""
        self._begin_fetch()
        if self._fetching is not None:
            await asyncio.wait([self._fetching])

    def _begin_fetch(self) -> None:
        is_running = self._fetching is not None and not self._fetching.done()
        is_cool = self._tried_s is None or self._now_s() - self._tried_s >= COOL_DOWN_S
        if not is_running and is_cool:
            self._tried_s = self._now_s()
            self._fetching = asyncio.create_task(self._fetch())

    async def _fetch(self) -> None:
        try:
            self._keys = await self._fetched_keys()
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, ValueError, TypeError) as error:
            reason = f"{type(error).__name__}: {error}"
            log.warning("the keys of an identity provider cannot be fetched", issuer=self._issuer, reason=reason)
            self._has_failed = True
        else:
            self._has_failed = False
            self._fetched_s = self._now_s()
            log.info("the keys of an identity provider were fetched", issuer=self._issuer, count=len(self._keys.keys))

    async def _fetched_keys(self) -> KeySet:
        document = await self._get(self._issuer.rstrip("/") + _DISCOVERY)
        if document.get("issuer") != self._issuer:
            raise ValueError(f"its discovery document is of {document.get('issuer')!r}")
        url = str(document.get("jwks_uri", ""))
        is_same_kind = urlsplit(url).scheme == urlsplit(self._issuer).scheme
        if not is_fetchable(url) or not is_same_kind:
            raise ValueError("its jwks_uri is not an https URL")
        listed = (await self._get(url)).get("keys")
        if not isinstance(listed, list):
            raise TypeError("its keys are not a list")
        return KeySet([key for entry in listed if (key := _public_key(entry)) is not None])

    async def _get(self, url: str) -> dict[str, Any]:
        data = b""
        async with asyncio.timeout(TIMEOUT_S), self._client.stream("GET", url) as response:
            if response.status_code != httpx.codes.OK:
                raise ValueError(f"it answers {response.status_code}")
            async for part in response.aiter_bytes():
                data += part
                if len(data) > MAX_BYTES:
                    raise ValueError(f"it answers more than {MAX_BYTES} bytes")
        document = from_json(data)
        if not isinstance(document, dict):
            raise TypeError("its answer is not a JSON object")
        return document


def _public_key(entry: Any) -> Key | None:
    """Return the key in a list entry, or None if the key is unusable, so that the other keys still work."""
    if not isinstance(entry, dict) or entry.get("kty") == "oct":
        return None
    try:
        return import_key(entry)
    except (JoseError, ValueError, TypeError):
        return None


def _has(keys: KeySet, key_id: str | None) -> bool:
    return key_id is None or any(key.kid == key_id for key in keys.keys)
