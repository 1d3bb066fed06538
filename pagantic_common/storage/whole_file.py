"""Writes a file whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from tempfile import mkstemp


def write_whole(path: Path, text: str) -> None:
    """Write a text to a file that its user alone can read, and make the folders above it; raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_parts(path, [text.encode()])


def write_parts(path: Path, parts: Iterable[bytes | memoryview], *, prefix: str = "") -> None:
    """Write bytes, part by part, to a file that only its user can read; raises OSError, for example without its folder.

    Until it is complete, the file has another name in the folder, which begins with `prefix`; empty is a dot and its
    name.
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
