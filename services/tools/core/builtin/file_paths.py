"""Splits paths as models write them: a configured folder name, then names below it. It accesses no files."""

from __future__ import annotations

import re
from typing import Final

from pagantic_common.domain.messages import ToolFailed

MAX_PATH_CHARS: Final = 1024
MAX_DEPTH: Final = 32
MAX_NAME_BYTES: Final = 255
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_FOLDER_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")


def is_folder_name(name: str) -> bool:
    """Return whether a folder or a database of the deployment may have this name."""
    return _FOLDER_NAME.fullmatch(name) is not None


def split_path(path: str) -> tuple[str, ...]:
    """Return the names in a path, at least one. Raises ToolFailed if the path could lead out of its folder."""
    if len(path) > MAX_PATH_CHARS:
        raise ToolFailed(f"the path has {len(path)} characters, at most {MAX_PATH_CHARS} are allowed")
    if path.startswith("/"):
        raise ToolFailed("the path must not begin with '/': begin it with the name of a folder")
    names = tuple(name for name in path.split("/") if name not in {"", "."})
    if not names:
        raise ToolFailed("the path is empty: begin it with the name of a folder")
    if len(names) > MAX_DEPTH:
        raise ToolFailed(f"the path has {len(names)} levels, at most {MAX_DEPTH} are allowed")
    for name in names:
        _check_name(name)
    return names


def _check_name(name: str) -> None:
    if name == "..":
        raise ToolFailed("the path must not contain '..': name the file from its folder on")
    if "\\" in name or _CONTROL.search(name):
        raise ToolFailed("the path must not contain backslashes or control characters")
    try:
        size_bytes = len(name.encode())
    except UnicodeEncodeError:
        raise ToolFailed("the path is not valid Unicode") from None
    if size_bytes > MAX_NAME_BYTES:
        raise ToolFailed(f"a name in the path has {size_bytes} bytes, at most {MAX_NAME_BYTES} are allowed")
