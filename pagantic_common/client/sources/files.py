"""Finds the files that a list of paths names."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path


def find_files(paths: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """Return the files that the paths name, including the files in folders. Raises OSError for an unreadable path.

    The files of a folder and its subfolders are sorted by name, and hidden files are omitted. A path that is neither a
    file nor a folder, such as a pipe, also counts as unreadable. Raises TypeError for a single path, whose characters
    would count as paths.
    """
    if isinstance(paths, str | os.PathLike):
        raise TypeError(f"paths is the path {os.fspath(paths)!r}: it must be a list of paths")
    files: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            files += _files_in(path)
            continue
        _check_readable(path)
        files.append(path)
    return files


def size_of(path: Path) -> int:
    """Return the size of a file in bytes, or 0 if the file is missing."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _check_readable(path: Path) -> None:
    # Opening a pipe would block until a writer opens it.
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "it is neither a file nor a folder", str(path))
    path.open("rb").close()


def _files_in(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder, onerror=_raise):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith(".") and (Path(parent) / name).is_file():
                yield Path(parent) / name


def _raise(error: OSError) -> None:
    raise error
