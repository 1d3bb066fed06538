"""Writes a file completely or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from tempfile import mkstemp


def write_whole(path: Path, text: str) -> None:
    """Write a text to a file that only its user can read, and create the folders above it. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_parts(path, [text.encode()])


def write_parts(path: Path, parts: Iterable[bytes | memoryview], *, prefix: str = "") -> None:
    """Write bytes, part by part, to a file that only its user can read. Raises OSError, e.g. if its folder is missing.

    Until the file is complete, it has a temporary name in the same folder. That name begins with `prefix` or, if
    `prefix` is empty, with a dot and the file's name.
    """
    number, name = mkstemp(dir=path.parent, prefix=prefix or f".{path.name}")
    try:
        with os.fdopen(number, "wb") as file:
            for part in parts:
                file.write(part)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
