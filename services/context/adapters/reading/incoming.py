"""Stores incoming files in a temporary folder until they are read, so that memory holds only parts of them.

Tenants share the capacity of the folder, so that the files of one tenant never fill it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from tempfile import NamedTemporaryFile, TemporaryDirectory
from typing import IO, Any, Self

from pagantic_common.domain.calls.shares import Shares
from pagantic_common.domain.errors import ErrorCode, Overloaded, Unavailable

RETRY_AFTER_S = 5.0
FILES = 6  # The folder holds this many files of maximum size: 384 MiB by default.


class TemporaryFile:
    """Implements IncomingFile. Stores one byte beyond the limit, so the reader can detect a file that is too large."""

    def __init__(self, file: IO[bytes], max_bytes: int, shares: Shares, owner: str | None) -> None:
        self._file = file
        self._left = max_bytes + 1
        self._shares = shares
        self._owner = owner
        self._held_bytes = 0

    @property
    def path(self) -> str:
        """The path of the file."""
        return self._file.name

    async def write(self, data: bytes) -> None:
        """Append bytes. Raises Overloaded if the owner's share is used up, and Unavailable if the disk is full."""
        data = data[: self._left]
        if not self._shares.begin(self._owner, len(data)):
            raise Overloaded(
                f"files of {self._shares.held_by(self._owner)} bytes are being received, as many as fit: send this "
                "file again when others are read",
                code=ErrorCode.QUOTA_CONCURRENCY,
                retry_after_s=RETRY_AFTER_S,
            )
        self._held_bytes += len(data)
        self._left -= len(data)
        if data:
            await asyncio.to_thread(self._write, data)

    def end(self) -> None:
        """Return the file's space to the folder's capacity."""
        self._shares.end(self._owner, self._held_bytes)

    def _write(self, data: bytes) -> None:
        try:
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            raise _cannot_keep(error) from None


class TemporaryFiles:
    """Implements IncomingFiles in a temporary folder. It is a context manager that deletes the folder on exit.

    Args:
        max_bytes: The maximum size of a file.
        has_tenants: Whether there may be several tenants. A single user may use the whole capacity.
    """

    def __init__(self, max_bytes: int, *, has_tenants: bool) -> None:
        self._has_tenants = has_tenants
        self._max_bytes = max_bytes
        self._shares = Shares(FILES * max_bytes)
        self._folder: TemporaryDirectory[str]

    def __enter__(self) -> Self:
        try:
            self._folder = TemporaryDirectory(prefix="pagantic-incoming-", ignore_cleanup_errors=True)
        except OSError as error:
            raise _cannot_keep(error) from None
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    @property
    def folder(self) -> str:
        """The path of the folder."""
        return self._folder.name

    @asynccontextmanager
    async def open(self, tenant: str) -> AsyncIterator[TemporaryFile]:
        """Create an empty file for a tenant, and remove it when the context ends."""
        try:
            file: Any = await asyncio.to_thread(NamedTemporaryFile, dir=self._folder.name)
        except OSError as error:
            raise _cannot_keep(error) from None
        incoming = TemporaryFile(file, self._max_bytes, self._shares, tenant if self._has_tenants else None)
        try:
            with file:
                yield incoming
        finally:
            incoming.end()


def _cannot_keep(error: OSError) -> Unavailable:
    reason = (error.strerror or str(error)).lower()
    return Unavailable(
        f"a received file cannot be kept: {reason}; free space in the folder for temporary files (TMPDIR)",
        code=ErrorCode.ORCHESTRATION_DEPENDENCY_UNAVAILABLE,
        retry_after_s=RETRY_AFTER_S,
    )
