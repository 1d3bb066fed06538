"""The operator's own keys, one for each line of a file: the first key of a new system, and the last resort."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from pagantic_common.domain.calls.api_keys import StoredKey, hash_of, parse_key
from pagantic_common.domain.calls.principal import DEFAULT_TENANT, Scope
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.telemetry.logging import get_logger

MAX_BYTES = 16 * 1024
LOOK_S = 1.0  # between looks whether the file has changed
SUBJECT = "admin"

log = get_logger(__name__)


class AdminKeyFile:
    """Reads the file again when it changes, so that two keys can be valid while one replaces the other.

    Raises InvalidRequest for a file that cannot be read, or has no key, when it is opened. Later a file that cannot be
    read leaves the keys as they were, and lines that are removed take their keys along.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._looked_s = time.monotonic()
        self._changed_ns = self._path_changed_ns()
        self._keys = self._read()
        if not self._keys:
            raise InvalidRequest(
                f"ADMIN_KEY_FILE {str(path)!r} has no API key: put the output of `pagantic keys new` into it"
            )

    def keys(self) -> Mapping[str, StoredKey]:
        """Return the keys by id."""
        now_s = time.monotonic()
        if now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            self._look()
        return self._keys

    def _look(self) -> None:
        try:
            changed_ns = self._path_changed_ns()
            if changed_ns == self._changed_ns:
                return
            self._keys = self._read()
            self._changed_ns = changed_ns
            log.info("the admin keys were read again", count=len(self._keys))
        except InvalidRequest as error:
            log.warning("the admin keys cannot be read: those from before stay valid", reason=str(error))

    def _path_changed_ns(self) -> int:
        try:
            return self._path.stat().st_mtime_ns
        except OSError as error:
            raise self._unreadable(error) from None

    def _read(self) -> dict[str, StoredKey]:
        try:
            with self._path.open("rb") as file:
                text = file.read(MAX_BYTES).decode(errors="replace")
        except OSError as error:
            raise self._unreadable(error) from None
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        keys = [key for line in lines if (key := parse_key(line)) is not None]
        if len(keys) < len(lines):
            log.warning("the admin key file has lines that are not keys", count=len(lines) - len(keys))
        return {
            key.key_id: StoredKey(DEFAULT_TENANT, key.key_id, SUBJECT, frozenset(Scope), hash_of(key.secret), 0.0)
            for key in keys
        }

    def _unreadable(self, error: OSError) -> InvalidRequest:
        shown = repr(str(self._path))
        if self._path.name.startswith("pag_"):  # a key where its path should be
            shown = "(not a path)"
        return InvalidRequest(f"ADMIN_KEY_FILE {shown} cannot be read: {error.strerror}")


def read_admin_keys(path: Path | None) -> Callable[[], Mapping[str, StoredKey]]:
    """Return what gives the keys of a file, and none without a file. Raises InvalidRequest as AdminKeyFile does."""
    if path is None:
        return dict
    return AdminKeyFile(path).keys
