"""Key files: the operator's API keys, the signing key of tenant tokens, and the key of the audit log."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

from pagantic_common.domain.calls.api_keys import StoredKey, hash_of, parse_key
from pagantic_common.domain.calls.principal import DEFAULT_TENANT, Scope
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.rpc.access.tenant_tokens import TenantTokens, read_signing_key
from pagantic_common.rpc.access.watched_file import WatchedFile
from pagantic_common.rpc.peer import Credentials
from pagantic_common.telemetry.logging import get_logger

ADMIN_KEY_FILE, AUDIT_KEY_FILE = "ADMIN_KEY_FILE", "AUDIT_KEY_FILE"
MIN_AUDIT_KEY_BYTES = 16
SUBJECT = "admin"
_PREFIX_CONTEXT = b"pagantic prefixes of prompts"

log = get_logger(__name__)


def read_admin_keys(path: Path | None) -> Callable[[], Mapping[str, StoredKey]]:
    """Return a function that returns the operator's keys by id; no keys if no path is given.

    Each line of the file is a key. These keys bootstrap a new system and serve as a last resort.
    The file is reloaded when it changes, so the old and the new key can both be valid during a rotation. Removing a
    line revokes its key. Raises InvalidRequest if the file cannot be read or has no key.
    """
    if path is None:
        return dict
    file = WatchedFile(path, ADMIN_KEY_FILE, _parse_api_keys)
    if not file.content():
        raise InvalidRequest(
            f"{ADMIN_KEY_FILE} {str(path)!r} has no API key: put the output of `pagantic keys new` into it"
        )
    return file.content


def read_audit_key(path: Path | None) -> bytes:
    """Return the secret that keys the hashes of the audit log; empty bytes if no path is given.

    The file is read only once, because a chain has one key. Raises InvalidRequest if the file is unusable.
    """
    if path is None:
        return b""
    return WatchedFile(path, AUDIT_KEY_FILE, _parse_audit_key).content()


def tenant_credentials(path: Path | None) -> Credentials:
    """Return credentials that sign tenant tokens with the key in a file.

    If no path is given, calls carry no token. Raises InvalidRequest if the file is unusable.
    """
    if path is None:
        return lambda _name, _caller: ""
    return TenantTokens(read_signing_key(path)).credentials


def prefix_secret(path: Path | None) -> bytes:
    """Return the secret that keys the names of prompt prefixes; empty bytes if no path is given.

    The secret is derived from the signing key, so orchestrators with the same signing key share the secret. Raises
    InvalidRequest if the file cannot be read.
    """
    if path is None:
        return b""
    return WatchedFile(path, "SIGNING_KEY_FILE", lambda data: hashlib.sha256(_PREFIX_CONTEXT + data).digest()).content()


def _parse_audit_key(data: bytes) -> bytes:
    key = data.strip()
    if len(key) < MIN_AUDIT_KEY_BYTES:
        raise InvalidRequest(f"has {len(key)} bytes: a secret has at least {MIN_AUDIT_KEY_BYTES}")
    return key


def _parse_api_keys(data: bytes) -> dict[str, StoredKey]:
    lines = [line.strip() for line in data.decode(errors="replace").splitlines() if line.strip()]
    keys = [key for line in lines if (key := parse_key(line)) is not None]
    if len(keys) < len(lines):
        log.warning("the admin key file has lines that are not keys", count=len(lines) - len(keys))
    return {
        key.key_id: StoredKey(DEFAULT_TENANT, key.key_id, SUBJECT, frozenset(Scope), hash_of(key.secret), 0.0)
        for key in keys
    }
