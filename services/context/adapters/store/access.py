"""The connection to the database of the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Lock
from typing import Any, TypeVar

from sqlalchemy import Connection, text
from sqlalchemy.dialects import postgresql, sqlite

from pagantic_common.domain.errors import ErrorCode, InvalidRequest, PaganticError, Unavailable
from pagantic_common.storage.database import READING, check_url, open_engine, translating_errors
from pagantic_common.storage.migration import migrate
from services.context.adapters.store.schema import SCHEMA

READERS = 4
POOL_SIZE = READERS + 1
CODE = ErrorCode.ORCHESTRATION_DEPENDENCY_UNAVAILABLE
ResultT = TypeVar("ResultT")
_OPENING = Lock()  # Alembic has one context per process, so stores are opened one at a time.


class StoreAccess:
    """Runs database work in threads: one writer and several readers.

    Construction raises InvalidRequest if the database is unusable, and Unavailable if it does not answer.
    """

    def __init__(self, url: str) -> None:
        self._problem = ""
        self._engine = open_engine(
            check_url(url, SCHEMA.name), SCHEMA.name, pool_size=POOL_SIZE, survives_power_loss=True, session_settings={}
        )
        self.insert: Any = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}[self._engine.dialect.name]
        try:
            with translating_errors(SCHEMA.name, CODE), _OPENING, self._engine.begin() as db:
                migrate(db, SCHEMA)
        except PaganticError as error:
            self._engine.dispose()
            if self._engine.dialect.name == "sqlite":
                raise InvalidRequest(f"the store in the data folder cannot be used: {error}") from None
            raise
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="store-writer")
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="store-reader")

    @property
    def is_shared(self) -> bool:
        """Whether several replicas may use the database. A SQLite file belongs to a single service."""
        return self._engine.dialect.name == "postgresql"

    def close(self) -> None:
        """Finish the current work, and disconnect."""
        self._writer.shutdown()
        self._readers.shutdown()
        self._engine.dispose()

    async def write(self, work: Callable[[Connection], ResultT]) -> ResultT:
        """Run the work in a separate transaction. Returns after the commit."""
        return await asyncio.get_running_loop().run_in_executor(self._writer, self._write_now, work)

    async def read(self, work: Callable[[Connection], ResultT]) -> ResultT:
        """Run read-only work on a consistent snapshot of the database."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._read_now, work)

    async def why_not_ready(self) -> str:
        """Return the reason why the store cannot be used, or an empty string if it can be used.

        Tries the store again if its last use failed. The service stays ready on a full volume, because reads still work
        and only Ingest requests fail.
        """
        if self._problem:
            with suppress(Unavailable):
                await self.read(lambda db: db.execute(text("SELECT max(id) FROM context_collections")))
        if not self._problem:
            return ""
        return f"the store cannot be used: {self._problem}"

    def _write_now(self, work: Callable[[Connection], ResultT]) -> ResultT:
        return self._noting_problems(lambda: self._write_in_transaction(work))

    def _read_now(self, work: Callable[[Connection], ResultT]) -> ResultT:
        return self._noting_problems(lambda: self._read_in_transaction(work))

    def _write_in_transaction(self, work: Callable[[Connection], ResultT]) -> ResultT:
        with translating_errors(SCHEMA.name, CODE), self._engine.begin() as db:
            return work(db)

    def _read_in_transaction(self, work: Callable[[Connection], ResultT]) -> ResultT:
        engine = self._engine.execution_options(**READING, isolation_level=_READING_LEVEL[self._engine.dialect.name])
        with translating_errors(SCHEMA.name, CODE), engine.connect() as db:
            return work(db)

    def _noting_problems(self, work: Callable[[], ResultT]) -> ResultT:
        try:
            result = work()
        except Unavailable as error:
            self._problem = str(error)
            raise
        self._problem = ""
        return result


# All statements of a read see the same snapshot.
_READING_LEVEL = {"sqlite": "SERIALIZABLE", "postgresql": "REPEATABLE READ"}
