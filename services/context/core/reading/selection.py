"""Selects files below a configured folder by paths and patterns, without accessing any file."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Final

from pagantic_common.domain.errors import InvalidRequest
from services.context.core.reading.files import FolderSelection

MAX_PATH_CHARS: Final = 1024
MAX_DEPTH: Final = 32
MAX_GLOB_CHARS: Final = 256


def split_folder_path(path: str) -> list[str]:
    """Return the names in a path below a root. Raises InvalidRequest if the path could lead out of the root."""
    if len(path) > MAX_PATH_CHARS:
        raise InvalidRequest(f"path has {len(path)} characters, at most {MAX_PATH_CHARS} are allowed")
    names = [name for name in path.split("/") if name not in {"", "."}]
    if path.startswith("/") or ".." in names or "\0" in path or "\\" in path:
        raise InvalidRequest(f"path {path[:80]!r} leads out of its root: name a folder from the root on, without '..'")
    if len(names) > MAX_DEPTH:
        raise InvalidRequest(f"path has {len(names)} levels, at most {MAX_DEPTH} are allowed")
    return names


def check_glob(glob: str) -> None:
    """Raise InvalidRequest if the pattern is too long."""
    if len(glob) > MAX_GLOB_CHARS:
        raise InvalidRequest(f"glob has {len(glob)} characters, at most {MAX_GLOB_CHARS} are allowed")


def is_selected(selection: FolderSelection, source: str) -> bool:
    """Return whether a source names a file of the selection. The file need not exist any more."""
    below = "/".join([selection.root, *split_folder_path(selection.path), ""])
    return source.startswith(below) and matches(selection.glob, source.removeprefix(f"{selection.root}/"))


def matches(glob: str, path: str) -> bool:
    """Return whether a path below a root matches a pattern. An empty pattern matches all paths."""
    return not glob or fnmatchcase(path, glob)
