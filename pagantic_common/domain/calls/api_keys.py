"""API keys: `pag_<id>_<secret>_<checksum>`. The prefix and the checksum let scanners detect leaked keys."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from pagantic_common.domain.calls.principal import Principal, PrincipalKind, Scope
from pagantic_common.domain.errors import ErrorCode

PREFIX = "pag"
ID_BYTES, SECRET_BYTES = 10, 32
_FORM = re.compile(rf"{PREFIX}_([a-z2-7]{{16}})_([a-z2-7]{{52}})_([0-9a-f]{{8}})")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key as its holder knows it. `repr` and `str` do not show the secret."""

    key_id: str
    secret: str

    @property
    def text(self) -> str:
        """The text that the holder sends."""
        return f"{_signed(self.key_id, self.secret)}_{_checksum(self.key_id, self.secret)}"

    def __repr__(self) -> str:
        return f"ApiKey({self.key_id!r})"


@dataclass(frozen=True, slots=True)
class StoredKey:
    """The service's record of a key. Times are seconds since 1970.

    A secret has 256 random bits, so its plain SHA-256 cannot be reversed, and a slow hash would not add security.
    """

    tenant: str
    key_id: str
    subject: str
    scopes: frozenset[Scope]
    secret_hash: bytes
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason that credentials are invalid: a code for the caller, and a text for the log."""

    code: ErrorCode
    reason: str


def make_key(random_bytes: Callable[[int], bytes]) -> ApiKey:
    """Return a new key."""
    return ApiKey(_encode(random_bytes(ID_BYTES)), _encode(random_bytes(SECRET_BYTES)))


def parse_key(text: str) -> ApiKey | None:
    """Parse an API key. Returns None if the text is not a key."""
    match = _FORM.fullmatch(text)
    if match is None:
        return None
    key_id, secret, checksum = match.groups()
    if checksum != _checksum(key_id, secret):
        return None
    return ApiKey(key_id, secret)


def hash_of(secret: str) -> bytes:
    """Return the hash that is stored for a secret."""
    return hashlib.sha256(secret.encode()).digest()


def judge(key: ApiKey, stored: StoredKey | None, now_s: float) -> Principal | Refusal:
    """Return the holder of a key, or the reason why the key is not valid.

    Only a caller that knows the secret learns that a key has expired.
    """
    if stored is None:
        return Refusal(ErrorCode.AUTH_INVALID, "the key is not known")
    if not hmac.compare_digest(hash_of(key.secret), stored.secret_hash):
        return Refusal(ErrorCode.AUTH_INVALID, "the secret is not the key's")
    if stored.revoked_at is not None:  # A revocation takes effect immediately, regardless of the clock.
        return Refusal(ErrorCode.AUTH_INVALID, "the key is revoked")
    if stored.expires_at is not None and stored.expires_at <= now_s:
        return Refusal(ErrorCode.AUTH_EXPIRED, "the key has expired")
    return Principal(
        stored.tenant, stored.subject, PrincipalKind.API_KEY, stored.scopes, stored.key_id, stored.expires_at
    )


def _encode(data: bytes) -> str:
    return base64.b32encode(data).decode().rstrip("=").lower()


def _signed(key_id: str, secret: str) -> str:
    return f"{PREFIX}_{key_id}_{secret}"


def _checksum(key_id: str, secret: str) -> str:
    return f"{zlib.crc32(_signed(key_id, secret).encode()):08x}"
