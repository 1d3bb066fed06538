"""Stores incoming files in a temporary folder until they are read. The service's memory holds only parts of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from tempfile import NamedTemporaryFile, TemporaryDirectory
from typing import IO, Any, Self

from pagantic_common.domain.errors import ErrorCode, Unavailable

RETRY_AFTER_S = 5.0


class TemporaryFile:
    """Implements IncomingFile. Stores one byte beyond the limit, so the reader can detect a file that is too large."""

    def __init__(self, file: IO[bytes], max_bytes: int) -> None:
        self._file = file
        self._left = max_bytes + 1

    @property
    def path(self) -> str:
        """The path of the file."""
        return self._file.name

    async def write(self, data: bytes) -> None:
        """Append the next bytes. Raises Unavailable if the disk is full."""
        data = data[: self._left]
        self._left -= len(data)
        if data:
            await asyncio.to_thread(self._write, data)

    def _write(self, data: bytes) -> None:
        try:
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            raise _cannot_keep(error) from None


class TemporaryFiles:
    """Implements IncomingFiles in a temporary folder. It is a context manager that deletes the folder on exit."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
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
    async def open(self) -> AsyncIterator[TemporaryFile]:
        """Create an empty file, which is removed when the context ends."""
        try:
            file: Any = await asyncio.to_thread(NamedTemporaryFile, dir=self._folder.name)
        except OSError as error:
            raise _cannot_keep(error) from None
        with file:
            yield TemporaryFile(file, self._max_bytes)


def _cannot_keep(error: OSError) -> Unavailable:
    reason = (error.strerror or str(error)).lower()
    return Unavailable(
        f"a received file cannot be kept: {reason}; free space in the folder for temporary files (TMPDIR)",
        code=ErrorCode.ORCHESTRATION_DEPENDENCY_UNAVAILABLE,
        retry_after_s=RETRY_AFTER_S,
    )
