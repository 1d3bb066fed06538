"""Reads, lists and writes files below given folders for tools. The functions block, so callers use a thread."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from pagantic_common.domain.messages import ToolFailed
from pagantic_common.storage.rooted import READ, is_regular, opened_file, opened_folder
from services.tools.core.builtin.file_paths import split_path

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_REASONS = {
    errno.ENOENT: "it does not exist: list the files of its folder",
    errno.ENOTDIR: "it is a link, or a part of its path is not a folder",
    errno.ELOOP: "it is a symbolic link",
    errno.EISDIR: "it is a folder",
    errno.EEXIST: "it exists already: set overwrite to replace it",
    errno.EACCES: "the service may not access it",
    errno.EPERM: "the service may not access it",
    errno.EROFS: "its folder cannot be written",
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk is full",
    errno.ENXIO: "it is not a regular file",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a folder. `kind` is file, folder or other."""

    name: str
    kind: str
    size_bytes: int


class RootedFiles:
    """The files below named folders. Each path starts with the name of a folder.

    Args:
        roots: The folders that may be read, by name.
        writable_roots: The folders that may be read and written, by name.
    """

    def __init__(self, roots: Mapping[str, Path], writable_roots: Mapping[str, Path]) -> None:
        self._roots = {**roots, **writable_roots}
        self._writable = frozenset(writable_roots)

    @property
    def names(self) -> list[str]:
        """The names of all folders."""
        return sorted(self._roots)

    @property
    def writable_names(self) -> list[str]:
        """The names of the writable folders."""
        return sorted(self._writable)

    def read(self, path: str, max_bytes: int) -> bytes:
        """Return the content of a regular file. Raises ToolFailed."""
        *folders, name = self._split(path)
        with self._explained(path), self._folder(folders) as folder, opened_file(name, READ, folder) as file:
            if not is_regular(file):
                raise ToolFailed(f"file {path!r} cannot be used: it is not a regular file")
            size_bytes = os.fstat(file).st_size
            with open(file, "rb", closefd=False) as stream:
                content = stream.read(max_bytes + 1)
        if len(content) > max_bytes:
            size_bytes = max(size_bytes, len(content))
            raise ToolFailed(f"file {path!r} has {size_bytes} bytes, at most {max_bytes} bytes are allowed")
        return content

    def list_folder(self, path: str, max_entries: int) -> tuple[list[Entry], bool]:
        """Return up to `max_entries` entries of a folder by name, and whether there are more. Raises ToolFailed."""
        names = self._split(path, least=1)
        entries: list[Entry] = []
        with self._explained(path), self._folder(names) as folder, os.scandir(folder) as listing:
            for entry in listing:
                if len(entries) == max_entries:
                    return sorted(entries, key=_name_of), True
                entries.append(_entry_of(entry))
        return sorted(entries, key=_name_of), False

    def write(self, path: str, content: bytes, *, is_overwriting: bool) -> None:
        """Write a whole file or nothing, and create its parent folders. Raises ToolFailed."""
        *folders, name = self._split(path)
        if folders[0] not in self._writable:
            writable = ", ".join(map(repr, self.writable_names))
            raise ToolFailed(f"folder {folders[0]!r} cannot be written: write to {writable}")
        with self._explained(path), self._folder(folders, is_made=True) as folder:
            if is_overwriting:
                _check_replaceable(path, name, folder)
            _write_whole(name, content, folder, is_overwriting=is_overwriting)

    def _split(self, path: str, least: int = 2) -> list[str]:
        names = split_path(path)
        if names[0] not in self._roots:
            raise ToolFailed(f"no folder is named {names[0]!r}: the folders are {', '.join(map(repr, self.names))}")
        if len(names) < least:
            raise ToolFailed(f"{path!r} is a folder: name a file in it, as {names[0]}/name")
        return list(names)

    def _folder(self, names: Sequence[str], *, is_made: bool = False) -> AbstractContextManager[int]:
        """Open the folder at a path, given as names. The first name is the name of a root."""
        if is_made:
            return opened_folder(self._roots[names[0]], names[1:], _make_folder)
        return opened_folder(self._roots[names[0]], names[1:])

    @contextmanager
    def _explained(self, path: str) -> Iterator[None]:
        """Convert system errors to ToolFailed without revealing a path of this machine."""
        try:
            yield
        except OSError as error:
            reason = _REASONS.get(error.errno or 0, f"the system refused it ({errno.errorcode.get(error.errno or 0)})")
            raise ToolFailed(f"file {path!r} cannot be used: {reason}") from None


def _make_folder(name: str, parent: int) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, dir_fd=parent)


def _check_replaceable(path: str, name: str, folder: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise ToolFailed(f"file {path!r} cannot be used: it is not a regular file")


def _write_whole(name: str, content: bytes, folder: int, *, is_overwriting: bool) -> None:
    """Write a file under a temporary name and then rename it, so that readers see the whole file or nothing."""
    draft = f".{secrets.token_hex(8)}.part"
    try:
        with opened_file(draft, _CREATE, folder) as file, open(file, "wb", closefd=False) as stream:
            stream.write(content)
            stream.flush()
            os.fsync(file)
        if is_overwriting:
            os.replace(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
        else:
            os.link(draft, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft, dir_fd=folder)


def _entry_of(entry: os.DirEntry[str]) -> Entry:
    if entry.is_dir(follow_symlinks=False):
        return Entry(entry.name, "folder", 0)
    if not entry.is_file(follow_symlinks=False):
        return Entry(entry.name, "other", 0)
    try:
        return Entry(entry.name, "file", entry.stat(follow_symlinks=False).st_size)
    except FileNotFoundError:  # the entry was deleted meanwhile
        return Entry(entry.name, "file", 0)


def _name_of(entry: Entry) -> str:
    return entry.name
