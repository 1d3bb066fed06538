"""Finds the files that paths name."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path


def find_files(paths: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """Return the files of paths and of the folders among them; raises OSError for one that cannot be read.

    Files of a folder, those of its folders too, are in the order of their names; hidden ones are left out.
    """
    files: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            files += _files_in(path)
            continue
        path.open("rb").close()
        files.append(path)
    return files


def size_of(path: Path) -> int:
    """Return the bytes of a file; 0 for one that is gone."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _files_in(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith(".") and (Path(parent) / name).is_file():
                yield Path(parent) / name
