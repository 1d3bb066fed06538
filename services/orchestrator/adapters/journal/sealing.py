"""Encrypts requests and answers in the journal, so that a copy of the database does not reveal them.

A value is encrypted for its row: the names of its table and column and the key of the row are authenticated, so a
value moved to another row, tenant or column cannot be decrypted. The cipher is XAES-256-GCM (C2SP). It derives
a key from the first half of a random nonce of 192 bits, and encrypts with that key and the second half. Up to
SHARED_VALUES successive values share the first half, because deriving takes longer than encrypting. A key of the
journal may encrypt any number of values.

Values of earlier versions are encrypted for their column alone, with AES-256-GCM (NIST SP 800-38D). Ids, times, states
and usage stay readable, because queries need them.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from sqlalchemy import Column, Connection, Dialect, LargeBinary, Text, TypeDecorator

from pagantic_common.domain.errors import InvalidRequest, PreconditionFailed
from pagantic_common.rpc.access.watched_file import WatchedFile

JOURNAL_KEY_FILE = "JOURNAL_KEY_FILE"
KEY_BYTES, ID_BYTES, TAG_BYTES = 32, 4, 16
COLUMN_MARK, MARK = b"\xff\xffP1", b"\xff\xffP2"  # No proto and no JSON text starts with these bytes.
NONCE_BYTES = {COLUMN_MARK: 12, MARK: 24}
TEXT_MARK = "\x01P1"
HALF = 12  # bytes in half of a nonce
SHARED_VALUES = 2**20  # NIST SP 800-38D allows a key 2**32 random nonces.
DERIVED_KEYS = 256  # maximum number of derived keys that a reader keeps
ValueT = TypeVar("ValueT", bytes, str)


class JournalKey:
    """A key of the journal."""

    def __init__(self, key: bytes) -> None:
        self._blocks = Cipher(algorithms.AES(key), modes.ECB())  # noqa: S305 - XAES derives keys from single blocks
        self._gcm = AESGCM(key)
        doubled = int.from_bytes(self._encrypt(bytes(16))) << 1
        self._subkey = (doubled ^ (0x87 if doubled >> 128 else 0)) & ((1 << 128) - 1)  # K1 of NIST SP 800-38B
        self._derived = lru_cache(maxsize=DERIVED_KEYS)(self._derive)
        self._first_half, self._left = b"", 0

    def make_nonce(self) -> bytes:
        """Return a random nonce of 24 bytes. Up to SHARED_VALUES successive nonces share the first half."""
        if self._left <= 0:
            self._first_half, self._left = os.urandom(HALF), SHARED_VALUES
        self._left -= 1
        return self._first_half + os.urandom(HALF)

    def encrypt(self, data: bytes, place: bytes, nonce: bytes) -> bytes:
        """Encrypt with XAES-256-GCM, a nonce of 24 bytes and the place as authenticated data."""
        return self._derived(nonce[:HALF]).encrypt(nonce[HALF:], data, place)

    def decrypt(self, data: bytes, place: bytes, nonce: bytes) -> bytes:
        """Decrypt the output of `encrypt`. Raises InvalidTag if the data, the place or the nonce differs."""
        return self._derived(nonce[:HALF]).decrypt(nonce[HALF:], data, place)

    def decrypt_of_column(self, data: bytes, column: bytes, nonce: bytes) -> bytes:
        """Decrypt a value of an earlier version. Raises InvalidTag if the data, the column or the nonce differs."""
        return self._gcm.decrypt(nonce, data, column)

    def _derive(self, first_half: bytes) -> AESGCM:
        blocks = [int.from_bytes(bytes([0, number, ord("X"), 0]) + first_half) for number in (1, 2)]
        return AESGCM(self._encrypt(b"".join((block ^ self._subkey).to_bytes(16) for block in blocks)))

    def _encrypt(self, blocks: bytes) -> bytes:
        return self._blocks.encryptor().update(blocks)


Keys = Mapping[bytes, JournalKey]  # Each name is a prefix of the key's hash; the first key encrypts.


class Sealing:
    """Encrypts and decrypts values. Without keys, values stay in plain text.

    Plain values and values of earlier versions can be read unless `is_strict` is set. With `is_strict`, they raise
    PreconditionFailed, because anyone with write access to the database may have inserted them.
    """

    def __init__(self, keys: Callable[[], Keys] = dict, *, is_strict: bool = False) -> None:
        self._keys = keys
        self._is_strict = is_strict

    @property
    def has_keys(self) -> bool:
        """Whether values are encrypted."""
        return bool(self._keys())

    def seal(self, data: bytes, column: str, *row: str | int) -> bytes:
        """Return the encrypted data of a column, named "table.column", in the row with this key."""
        keys = self._keys()
        if not keys:
            return data
        key_id, key = next(iter(keys.items()))
        nonce = key.make_nonce()
        return MARK + key_id + nonce + key.encrypt(data, _place_of(column, row), nonce)

    def open(self, data: bytes, column: str, *row: str | int) -> bytes:
        """Return the decrypted data. Raises PreconditionFailed if its key is missing, or if it was changed or moved."""
        mark, key_id = data[: len(MARK)], data[len(MARK) : len(MARK) + ID_BYTES]
        if mark != MARK and self._is_strict:
            raise PreconditionFailed("content of the journal is not encrypted for its row (JOURNAL_KEY_STRICT)")
        if mark not in NONCE_BYTES:
            return data
        key = self._keys().get(key_id)
        if key is None:
            raise PreconditionFailed(f"the journal's content is encrypted with a key that {JOURNAL_KEY_FILE} lacks")
        start = len(MARK) + ID_BYTES + NONCE_BYTES[mark]
        nonce, rest = data[len(MARK) + ID_BYTES : start], data[start:]
        try:
            if mark == MARK:
                return key.decrypt(rest, _place_of(column, row), nonce)
            return key.decrypt_of_column(rest, column.encode(), nonce)
        except (InvalidTag, ValueError):
            raise _changed() from None


class SealedBytes(TypeDecorator[bytes]):
    """The type of a column of bytes, named "table.column". `sealed` encrypts its values, and `opened` decrypts them."""

    impl = LargeBinary
    cache_ok = True

    def __init__(self, place: str) -> None:
        super().__init__()
        self.place = place


class SealedText(TypeDecorator[str]):
    """The type of a column of text that is encrypted like SealedBytes."""

    impl = Text
    cache_ok = True

    def __init__(self, place: str) -> None:
        super().__init__()
        self.place = place


def sealed(db: Connection, column: Column[Any], value: ValueT, *row: str | int) -> ValueT:
    """Return a value in the form stored in a sealed column of the row with this key."""
    sealing, name = sealing_of(db.dialect), _name_of(column)
    if isinstance(value, bytes):
        return sealing.seal(value, name, *row)
    if not sealing.has_keys:
        return value
    return TEXT_MARK + base64.b64encode(sealing.seal(value.encode(), name, *row)).decode()


def opened(db: Connection, column: Column[Any], stored: ValueT, *row: str | int) -> ValueT:
    """Return the value of a sealed column of the row with this key.

    Raises PreconditionFailed if its key is missing, or if it was changed or moved here.
    """
    sealing, name = sealing_of(db.dialect), _name_of(column)
    if isinstance(stored, bytes):
        return sealing.open(stored, name, *row)
    return sealing.open(_bytes_of(stored), name, *row).decode()


def content_size(stored: bytes | str | None) -> int:
    """Return the size in bytes of a value of a sealed column before encryption."""
    if stored is None:
        return 0
    data = stored if isinstance(stored, bytes) else _bytes_of(stored)
    nonce_bytes = NONCE_BYTES.get(data[: len(MARK)])
    if nonce_bytes is None:
        return len(data)
    return len(data) - len(MARK) - ID_BYTES - nonce_bytes - TAG_BYTES


def _name_of(column: Column[Any]) -> str:
    kind: Any = column.type
    return str(kind.place)


def _place_of(column: str, row: Sequence[str | int]) -> bytes:
    """Return the authenticated name of a value: its column and its row's key, whose parts contain no NUL."""
    return "\0".join([column, *map(str, row)]).encode()


def _bytes_of(text: str) -> bytes:
    if not text.startswith(TEXT_MARK):
        return text.encode()
    try:
        return base64.b64decode(text[len(TEXT_MARK) :], validate=True)
    except binascii.Error:
        raise _changed() from None


def set_sealing(dialect: Dialect, sealing: Sealing) -> None:
    """Set the keys that a dialect uses for its encrypted columns."""
    dialect.sealing = sealing  # type: ignore[attr-defined]  # column types can access only the dialect


def sealing_of(dialect: Dialect) -> Sealing:
    """Return the sealing of a dialect, which has no keys by default."""
    return getattr(dialect, "sealing", None) or _PLAIN


def read_journal_keys(path: Path | None, *, is_strict: bool = False) -> Sealing:
    """Return the sealing with the keys in a file, or a sealing without keys if no path is given.

    Each line is a base64 key. The first key encrypts, and every key decrypts. With `is_strict`, only values that are
    encrypted for their row are accepted.
    The file is reloaded when it changes. Raises InvalidRequest if the file is unusable.
    """
    if path is None:
        return _PLAIN
    return Sealing(WatchedFile(path, JOURNAL_KEY_FILE, _parse_keys).content, is_strict=is_strict)


def _changed() -> PreconditionFailed:
    return PreconditionFailed("encrypted content of the journal was changed")


def _parse_keys(data: bytes) -> Keys:
    lines = [line.strip() for line in data.splitlines() if line.strip()]
    if not lines:
        raise InvalidRequest("has no key: write the output of `openssl rand -base64 32` into it")
    return {hashlib.sha256(key).digest()[:ID_BYTES]: JournalKey(key) for key in map(_parse_key, lines)}


def _parse_key(line: bytes) -> bytes:
    try:
        key = base64.b64decode(line, validate=True)
    except binascii.Error:
        key = b""
    if len(key) != KEY_BYTES:
        raise InvalidRequest(f"has a line that is not {KEY_BYTES} bytes in base64")
    return key


_PLAIN = Sealing()
