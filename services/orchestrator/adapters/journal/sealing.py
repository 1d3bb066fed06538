"""Encrypts requests and answers in the journal, so that a copy of the database does not reveal them.

It uses AES-256-GCM (NIST SP 800-38D) with a random nonce for each value. Ids, times, states and usage stay readable,
because queries need them.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from sqlalchemy import Dialect, LargeBinary, Text, TypeDecorator

from pagantic_common.domain.errors import InvalidRequest, PreconditionFailed
from pagantic_common.rpc.access.watched_file import WatchedFile

JOURNAL_KEY_FILE = "JOURNAL_KEY_FILE"
KEY_BYTES, NONCE_BYTES, ID_BYTES = 32, 12, 4
MARK = b"\xff\xffP1"  # no proto and no JSON text starts with these bytes
TEXT_MARK = "\x01P1"

Keys = Mapping[bytes, AESGCM]  # Each name is a prefix of the key's hash; the first key encrypts.


class Sealing:
    """Encrypts and decrypts values. Without keys, values stay plain. Decryption returns plain values unchanged."""

    def __init__(self, keys: Callable[[], Keys] = dict) -> None:
        self._keys = keys

    def seal(self, data: bytes, place: bytes) -> bytes:
        """Return the encrypted data, which can be decrypted only with the same key and the same `place`."""
        keys = self._keys()
        if not keys:
            return data
        key_id, key = next(iter(keys.items()))
        nonce = os.urandom(NONCE_BYTES)
        return MARK + key_id + nonce + key.encrypt(nonce, data, place)

    def open(self, data: bytes, place: bytes) -> bytes:
        """Return the decrypted data. Raises PreconditionFailed if the key is missing or the data was changed."""
        if not data.startswith(MARK):
            return data
        key_id, rest = data[len(MARK) : len(MARK) + ID_BYTES], data[len(MARK) + ID_BYTES :]
        key = self._keys().get(key_id)
        if key is None:
            raise PreconditionFailed(f"the journal's content is encrypted with a key that {JOURNAL_KEY_FILE} lacks")
        try:
            return key.decrypt(rest[:NONCE_BYTES], rest[NONCE_BYTES:], place)
        except (InvalidTag, ValueError):
            raise _changed() from None


class SealedBytes(TypeDecorator[bytes]):
    """Bytes of a column, named "table.column", that are encrypted with the keys of the engine's dialect."""

    impl = LargeBinary
    cache_ok = True

    def __init__(self, place: str) -> None:
        super().__init__()
        self.place = place

    def process_bind_param(self, value: bytes | None, dialect: Dialect) -> bytes | None:
        """Encrypt a value to store."""
        if value is None:
            return None
        return sealing_of(dialect).seal(value, self.place.encode())

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> bytes | None:
        """Decrypt a stored value."""
        if value is None:
            return None
        return sealing_of(dialect).open(bytes(value), self.place.encode())


class SealedText(TypeDecorator[str]):
    """Text of a column that is encrypted like SealedBytes."""

    impl = Text
    cache_ok = True

    def __init__(self, place: str) -> None:
        super().__init__()
        self.place = place

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Encrypt a value to store."""
        if value is None:
            return None
        data = value.encode()
        sealed = sealing_of(dialect).seal(data, self.place.encode())
        if sealed is data:
            return value
        return TEXT_MARK + base64.b64encode(sealed).decode()

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        """Decrypt a stored value."""
        if value is None or not value.startswith(TEXT_MARK):
            return value
        try:
            sealed = base64.b64decode(value[len(TEXT_MARK) :], validate=True)
        except binascii.Error:
            raise _changed() from None
        return sealing_of(dialect).open(sealed, self.place.encode()).decode()


def set_sealing(dialect: Dialect, sealing: Sealing) -> None:
    """Set the keys that a dialect uses for its encrypted columns."""
    dialect.sealing = sealing  # type: ignore[attr-defined]  # types of columns are given nothing else of an engine


def sealing_of(dialect: Dialect) -> Sealing:
    """Return the sealing of a dialect, which has no keys by default."""
    return getattr(dialect, "sealing", None) or _PLAIN


def read_journal_keys(path: Path | None) -> Sealing:
    """Return the sealing with the keys in a file, or a sealing without keys if no path is given.

    Each line is a base64 key. The first key encrypts, and every key decrypts.
    The file is read again when it changes. Raises InvalidRequest if the file is unusable.
    """
    if path is None:
        return _PLAIN
    return Sealing(WatchedFile(path, JOURNAL_KEY_FILE, _parse_keys).content)


def _changed() -> PreconditionFailed:
    return PreconditionFailed("encrypted content of the journal was changed")


def _parse_keys(data: bytes) -> Keys:
    lines = [line.strip() for line in data.splitlines() if line.strip()]
    if not lines:
        raise InvalidRequest("has no key: write the output of `openssl rand -base64 32` into it")
    return {hashlib.sha256(key).digest()[:ID_BYTES]: AESGCM(key) for key in map(_parse_key, lines)}


def _parse_key(line: bytes) -> bytes:
    try:
        key = base64.b64decode(line, validate=True)
    except binascii.Error:
        key = b""
    if len(key) != KEY_BYTES:
        raise InvalidRequest(f"has a line that is not {KEY_BYTES} bytes in base64")
    return key


_PLAIN = Sealing()
