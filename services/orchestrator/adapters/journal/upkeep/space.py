"""The size of the journal and the free space of its volume."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

from sqlalchemy import Engine, text

from pagantic_common.storage.database import READING

_PARTS = ("", "-wal", "-shm")  # the files of a SQLite database


class JournalSpace:
    """Asks the file system about a SQLite file; of a server it knows the last reported size only."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._path: Path | None = None
        if engine.dialect.name == "sqlite":
            self._path = Path(str(engine.url.database))
        self._server_bytes = math.nan

    def used_bytes(self) -> float:
        """Return the size of the database; NaN while it is unknown."""
        if self._path is None:
            return self._server_bytes
        parts = [Path(f"{self._path}{part}") for part in _PARTS]
        return float(sum(part.stat().st_size for part in parts if part.exists()))

    def free_bytes(self) -> float | None:
        """Return the free space of the volume; None for a database server."""
        if self._path is None:
            return None
        return float(shutil.disk_usage(self._path.parent).free)

    def ask(self) -> None:
        """Ask the server for the size of its database; blocks."""
        if self._path is None:
            with self._engine.execution_options(**READING).connect() as db:
                self._server_bytes = float(db.execute(text("SELECT pg_database_size(current_database())")).scalar_one())
