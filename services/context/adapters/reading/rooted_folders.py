"""Lists and copies files below configured folders. Links that lead out of a folder are not followed."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from pagantic_common.domain.errors import ErrorCode, InvalidRequest, NotFound, PermissionDenied, PreconditionFailed
from pagantic_common.storage.rooted import READ, is_regular, opened_file, opened_folder
from services.context.core.reading.bounds import MIB
from services.context.core.reading.files import FolderSelection
from services.context.core.reading.selection import MAX_DEPTH, check_glob, matches, split_folder_path
from services.context.ports import FolderListing, IncomingFile

MAX_FILES: Final = 100_000


class RootedFolders:
    """Implements ServedFolders for folders with configured names."""

    def __init__(self, roots: Mapping[str, Path], max_file_bytes: int) -> None:
        self._roots = roots
        self._max_file_bytes = max_file_bytes

    async def list_files(self, selection: FolderSelection) -> FolderListing:
        """List the files of a selection, except hidden files, links and special files."""
        root = self._root_of(selection.root)
        names = split_folder_path(selection.path)
        check_glob(selection.glob)
        return await asyncio.to_thread(_list_files, root, names, selection.glob)

    async def copy(self, root: str, path: str, file: IncomingFile) -> None:
        """Copy the content of a file, at most one byte beyond the limit."""
        *folders, name = path.split("/")
        remaining_bytes = self._max_file_bytes + 1
        try:
            with opened_folder(self._root_of(root), folders) as folder, opened_file(name, READ, folder) as source:
                if not is_regular(source):
                    raise InvalidRequest("the file is not a regular file any more: ingest the folder again")
                while remaining_bytes > 0 and (
                    data := await asyncio.to_thread(os.read, source, min(MIB, remaining_bytes))
                ):
                    remaining_bytes -= len(data)
                    await file.write(data)
        except OSError as error:
            raise InvalidRequest(f"the file cannot be read: {_reason_of(error)}") from None

    def _root_of(self, name: str) -> Path:
        if not self._roots:
            raise PermissionDenied(
                "this deployment serves no folder: name one in PAGANTIC_CONTEXT_INGEST_ROOTS, or send the files with "
                "IngestFiles",
                code=ErrorCode.CONFIG_INVALID,
            )
        if name not in self._roots:
            folder_names = ", ".join(map(repr, sorted(self._roots)))
            raise NotFound(f"no folder is named {name[:80]!r}: the folders are {folder_names}")
        return self._roots[name]


def _list_files(root: Path, names: list[str], glob: str) -> FolderListing:
    try:
        with opened_folder(root, names):
            pass
    except OSError as error:
        raise NotFound(f"folder {'/'.join(names)[:80]!r} cannot be listed: {_reason_of(error)}") from None
    paths: list[str] = []
    unreadable: list[tuple[str, str]] = []
    waiting = [names]
    while waiting:
        folder = waiting.pop()
        try:
            entries = list(_entries_of(root, folder))
        except OSError as error:
            unreadable.append(("/".join(folder), f"the folder cannot be listed: {_reason_of(error)}"))
            continue
        waiting += [[*folder, name] for name, is_folder in entries if is_folder]
        paths += filter(partial(matches, glob), _files_of(folder, entries))
        if len(paths) > MAX_FILES:
            raise PreconditionFailed(f"the folder has more than {MAX_FILES} files: ingest the folders in it one by one")
    return FolderListing(sorted(paths), unreadable)


def _files_of(folder: list[str], entries: list[tuple[str, bool]]) -> list[str]:
    return ["/".join([*folder, name]) for name, is_folder in entries if not is_folder]


def _entries_of(root: Path, names: list[str]) -> Iterator[tuple[str, bool]]:
    """Yield the name of each file and folder in a folder, and whether it is a folder."""
    if len(names) > MAX_DEPTH:
        raise OSError(errno.ELOOP, "")
    with opened_folder(root, names) as folder, os.scandir(folder) as entries:
        for entry in entries:
            is_folder = entry.is_dir(follow_symlinks=False)
            if not entry.name.startswith(".") and (is_folder or entry.is_file(follow_symlinks=False)):
                yield entry.name, is_folder


def _reason_of(error: OSError) -> str:
    """Return the reason for an error without revealing a path of this machine."""
    reasons = {
        errno.ENOENT: "it does not exist",
        errno.ENOTDIR: "it is a link, or a part of its path is not a folder",
        errno.ELOOP: f"it is a link, or below more than {MAX_DEPTH} folders",
        errno.EACCES: "the service may not read it: change its permissions",
    }
    return reasons.get(error.errno or 0, (error.strerror or "the system refused it").lower())
