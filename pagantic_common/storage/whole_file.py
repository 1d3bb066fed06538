"""Writes a file whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import mkstemp


def write_whole(path: Path, text: str) -> None:
    """Write a text to a file that its user alone can read, and make the folders above it; raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    number, name = mkstemp(dir=path.parent, prefix=f".{path.name}")
    try:
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
