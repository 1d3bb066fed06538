"""Implements PrefixStore as a folder with one file per block. Services on several machines may share the folder.

A file begins with a digest of its name and cells, so that torn, damaged and renamed files are detected and deleted. The
modification time of a file is the time of its last use. After writing a certain share of the folder's bound, a service
counts the files again and deletes the least recently used files beyond its bound. Another service may delete the same
files meanwhile.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pagantic_common.domain.errors import ErrorCode, PreconditionFailed
from pagantic_common.storage.whole_file import write_parts
from pagantic_common.telemetry.logging import get_logger
from services.inference.core.scheduling.operations import Cells

_MAGIC = b"pagkv\0\0\1"  # the last byte is the format version
_DIGEST_BYTES = 32
_HEADER_BYTES = len(_MAGIC) + _DIGEST_BYTES
_SUFFIX = ".cells"
_NEW = ".new-"
_STRAY_NS = 60 * 10**9  # an older unfinished file belongs to a dead writer
_LOG_AGAIN_S = 60.0
_ROOM = 16  # deletions free 1/16 of the bound, and files are recounted after writing 1/16 of it

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _File:
    used_ns: int
    size: int
    path: Path


class PrefixFolder:
    """Stores blocks of KV cells as files in a folder, with at most `max_bytes` in total.

    Raises PreconditionFailed (CONFIG_INVALID) if the folder cannot be created or written.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._written_bytes = 0  # bytes written since the last count of files
        self._logged_s = -_LOG_AGAIN_S
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=folder, prefix=_NEW):
                self._counted_bytes = self._make_room(0)
        except OSError as error:
            raise PreconditionFailed(
                f"the folder of prefixes {str(folder)!r} cannot be written: {error.strerror}",
                code=ErrorCode.CONFIG_INVALID,
            ) from None

    def read(self, name: str, max_bytes: int) -> Cells | None:
        """Return a block, or None if it is missing or larger than `max_bytes`."""
        path = self._path(name)
        try:
            cells = _read(path, name, _HEADER_BYTES + max_bytes)
            if cells is None:
                path.unlink()
                log.warning("a stored block was damaged, and is deleted")
            else:
                with suppress(FileNotFoundError):  # the file was deleted meanwhile
                    os.utime(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._complain(error)
            return None
        return cells

    def write(self, name: str, cells: Cells) -> bool:
        """Store a block, and return False if storing fails."""
        size = _HEADER_BYTES + cells.size
        if size > self._max_bytes:
            return False
        try:
            is_full = self._counted_bytes + self._written_bytes + size > self._max_bytes
            if is_full or self._written_bytes > self._max_bytes // _ROOM:
                self._counted_bytes = self._make_room(size)
                self._written_bytes = 0
            if self._counted_bytes + size > self._max_bytes:  # other files cannot be deleted
                return False
            write_parts(self._path(name), [_header(name, cells), memoryview(cells.data)], prefix=_NEW)
        except OSError as error:
            self._complain(error)
            return False
        self._written_bytes += size
        return True

    def touch(self, name: str) -> bool:
        """Record the use of a block, and return False if the block is missing."""
        try:
            os.utime(self._path(name))
        except FileNotFoundError:
            return False
        except OSError as error:
            self._complain(error)
            return False
        return True

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}{_SUFFIX}"

    def _make_room(self, size: int) -> int:
        """Delete the least recently used files to make room for `size` bytes.

        Returns the total size of the remaining files. Deletes no file if all files and the `size` bytes fit.
        """
        files = sorted(self._files(), key=lambda file: file.used_ns)
        total = sum(file.size for file in files)
        if total + size <= self._max_bytes:
            return total
        for file in files:
            if total + size <= self._max_bytes - self._max_bytes // _ROOM:
                break
            total -= file.size * _delete(file.path)
        return total

    def _files(self) -> list[_File]:
        """Return the files of blocks, and delete unfinished files of dead writers."""
        with os.scandir(self._folder) as entries:
            files = [file for entry in entries if (file := _file_of(entry)) is not None]
        for file in files:
            if file.path.name.startswith(_NEW) and file.used_ns < time.time_ns() - _STRAY_NS:
                _delete(file.path)
        return [file for file in files if file.path.suffix == _SUFFIX]

    def _complain(self, error: OSError) -> None:
        """Log a failure, at most once a minute."""
        now_s = time.monotonic()
        if now_s - self._logged_s >= _LOG_AGAIN_S:
            self._logged_s = now_s
            log.warning("the folder of prefixes cannot be used: prompts are computed", error=str(error.strerror))


def _read(path: Path, name: str, max_bytes: int) -> Cells | None:
    """Return the cells in a file, or None if the file is damaged or its cells exceed `max_bytes`."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            return None
        data = np.empty(size, dtype=np.uint8)
        count = file.readinto(data.data)
    cells = data[_HEADER_BYTES:]
    if count == size and data[:_HEADER_BYTES].tobytes() == _header(name, cells):
        return cells
    return None


def _header(name: str, cells: Cells) -> bytes:
    digest = hashlib.blake2b(name.encode(), digest_size=_DIGEST_BYTES)
    digest.update(cells.data)
    return _MAGIC + digest.digest()


def _file_of(entry: os.DirEntry[str]) -> _File | None:
    """Return the time, size and path of a file, or None if the entry is not a file or was deleted meanwhile."""
    try:
        if not entry.is_file(follow_symlinks=False):
            return None
        stat = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None
    return _File(stat.st_mtime_ns, stat.st_size, Path(entry.path))


def _delete(path: Path) -> bool:
    """Delete a file, and return whether it is gone. Does not raise, so that other files can still be deleted."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return False
    return True
