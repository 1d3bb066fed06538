"""How much room the journal takes, and what its volume has left."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

from sqlalchemy import Engine, text

from services.orchestrator.adapters.journal_database import READING

_PARTS = ("", "-wal", "-shm")  # the files of a SQLite database


class JournalSpace:
    """Of a file, what the file system says; of a server, the size that it said last, and nothing of its volume."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        is_file = engine.dialect.name == "sqlite"
        self._path = Path(str(engine.url.database)) if is_file else None
        self._told_bytes = math.nan

    def used_bytes(self) -> float:
        """Return the size of the database; not a number while it is not known."""
        if self._path is None:
            return self._told_bytes
        parts = [Path(f"{self._path}{part}") for part in _PARTS]
        return float(sum(part.stat().st_size for part in parts if part.exists()))

    def free_bytes(self) -> float | None:
        """Return what the volume has left; None for a server's."""
        return None if self._path is None else float(shutil.disk_usage(self._path.parent).free)

    def ask(self) -> None:
        """Ask a server for the size of its database; blocks."""
        if self._path is None:
            with self._engine.execution_options(**READING).connect() as db:
                self._told_bytes = float(db.execute(text("SELECT pg_database_size(current_database())")).scalar_one())
