"""Queries SQLite databases that the deployment configures. No query can write.

A query runs in a confined process, because a row, a sort or a recursion may take far more memory or disk than the
result. The process cannot write files, so a query has no temporary files either.
"""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pagantic_common.domain.errors import InvalidRequest, Unavailable
from pagantic_common.domain.messages import ToolDefinition, ToolSafety
from pagantic_common.domain.text.json_text import dump_json
from pagantic_common.workers.process_workers import ProcessWorkers
from pagantic_common.workers.worker_process import WorkerLimits
from services.tools.adapters.builtin.confined import run_confined
from services.tools.adapters.builtin.parameters import object_schema
from services.tools.ports import Report, make_places

MAX_QUERY_CHARS = 8192
MAX_ROWS = 200
MAX_QUERY_S = 5.0
MAX_QUERY_MIB = 128
SQL_PROCESSES = 2
_GRACE_S = 1.0  # SQLite stops after MAX_QUERY_S, and the process is killed this much later
_STEPS_BETWEEN_CHECKS = 1000

_PERMITTED_ACTIONS = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
)
_REFUSED_FUNCTIONS = frozenset({"load_extension", "fts3_tokenizer", "readfile", "writefile", "edit"})
# Limits of a statement, in the order of the entries: bytes of a value, bytes of the statement, columns, nesting,
# parts of a UNION, compiled steps, arguments of a function, attached databases, bytes of a LIKE pattern, and threads.
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 1_000_000,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 4 * MAX_QUERY_CHARS,
    sqlite3.SQLITE_LIMIT_COLUMN: 200,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 50,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 25_000,
    sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 32,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 100,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}


class SqlQueryTool:
    """Runs a SELECT statement on a SQLite file that is opened read-only.

    Args:
        databases: The files by database name, which models use.
        max_bytes: The maximum size of the result.
        workers: The processes that run the queries.
    """

    unavailable_reason = ""
    is_remote = False

    def __init__(self, databases: Mapping[str, Path], max_bytes: int, workers: ProcessWorkers) -> None:
        self._databases = databases
        self._max_bytes = max_bytes
        self._workers = workers
        self.places = make_places(SQL_PROCESSES, max(1, SQL_PROCESSES - 1))
        names = sorted(databases)
        self.definition = ToolDefinition(
            name="sql_query",
            description=(
                f"Runs one SELECT on a SQLite database: {', '.join(names)}. The table sqlite_master has the tables and "
                f"their columns. A result has at most {MAX_ROWS} rows."
            ),
            parameters_json=object_schema(
                ("database", "query"),
                database={"type": "string", "enum": names, "description": "the database"},
                query={
                    "type": "string",
                    "description": "one SELECT statement",
                    "minLength": 1,
                    "maxLength": MAX_QUERY_CHARS,
                },
            ),
            safety=ToolSafety.READ,
            idempotent=True,
            timeout_s=MAX_QUERY_S + 5,
        )

    async def run(self, arguments: Mapping[str, Any], _report: Report) -> str:
        """Return columns and rows as a JSON object. Raises ToolFailed."""
        path = str(self._databases[arguments["database"]].resolve())  # SQLite's other files are next to the real file
        return await run_confined(self._workers, query_rows, path, arguments["query"], self._max_bytes, MAX_QUERY_S)


def make_sql_workers(databases: Mapping[str, Path]) -> ProcessWorkers:
    """Return the workers that query the databases. Their processes start with the first queries."""
    folders = {str(folder) for path in databases.values() for folder in (path.parent, path.resolve().parent)}
    limits = WorkerLimits(
        processes=SQL_PROCESSES,
        time_s=MAX_QUERY_S + _GRACE_S,
        memory_mib=MAX_QUERY_MIB,
        queue_capacity=SQL_PROCESSES,
        module=__name__,
        advice="ask for less",
        folders=tuple(sorted(folders)),
    )
    return ProcessWorkers(limits, is_started_late=True)


def query_rows(path: str, query: str, max_bytes: int, max_s: float) -> str:
    """Return columns and rows of a query as a JSON object.

    Raises InvalidRequest with the reason, and Unavailable if another program changed the database during the query.
    """
    ends_at_s = time.monotonic() + max_s

    def must_stop() -> bool:
        return time.monotonic() >= ends_at_s

    is_alone = _is_alone(path)
    try:
        with closing(_open(path, is_alone=is_alone)) as database:
            database.set_progress_handler(must_stop, _STEPS_BETWEEN_CHECKS)
            with closing(database.execute(query)) as cursor:
                columns = [column[0] for column in cursor.description or ()]
                result = rows_to_json(columns, cursor, MAX_ROWS, max_bytes)
    except MemoryError:
        raise InvalidRequest(f"the query takes more than {MAX_QUERY_MIB} MiB: ask for less") from None
    except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
        if must_stop():
            raise InvalidRequest(f"the query did not end within {max_s:g} s: ask for less") from None
        raise InvalidRequest(f"the query failed: {_reason_of(error)}") from None
    if is_alone and not _is_alone(path):
        raise Unavailable("the database was changed during the query: ask again")
    return result


def _is_alone(path: str) -> bool:
    """Return whether a database in SQLite's WAL mode is not open in any program.

    SQLite would create files next to this database to read it, and this process cannot. The database file is complete,
    so it can be read without locks.
    """
    try:
        with Path(path).open("rb") as file:
            header = file.read(20)
        return header[18:20] == b"\2\2" and not Path(path + "-wal").exists()
    except OSError:
        return False


def _open(path: str, *, is_alone: bool) -> sqlite3.Connection:
    options = "mode=ro&immutable=1" if is_alone else "mode=ro"
    database = sqlite3.connect(f"file:{quote(path)}?{options}", uri=True, isolation_level=None)
    try:
        database.text_factory = _decode
        database.execute("PRAGMA trusted_schema=OFF")  # views and indexes of the file cannot call risky functions
        database.execute("PRAGMA query_only=ON")
        database.execute("PRAGMA temp_store=MEMORY")
        for limit, value in _LIMITS.items():
            database.setlimit(limit, value)
        database.set_authorizer(_authorize)
    except BaseException:
        database.close()
        raise
    return database


def _decode(text: bytes) -> str:
    return text.decode(errors="replace")


def _authorize(action: int, _first: str | None, second: str | None, _database: str | None, _source: str | None) -> int:
    if action not in _PERMITTED_ACTIONS:
        return sqlite3.SQLITE_DENY
    if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _REFUSED_FUNCTIONS:
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


def _reason_of(error: Exception) -> str:
    """Describe an error. SQLite's messages contain no paths."""
    if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_AUTH:
        return "only one SELECT statement is permitted, without PRAGMA, ATTACH and functions that reach files"
    return str(error)[:500].encode(errors="replace").decode()


def rows_to_json(columns: Sequence[str], rows: Iterable[Sequence[Any]], max_rows: int, max_bytes: int) -> str:
    """Return a JSON object with the columns, the rows and whether rows were left out.

    Raises InvalidRequest if not even one row fits.
    """
    names = dump_json([_text(name) for name in columns])
    written: list[str] = []
    left_bytes = max_bytes - len(names.encode()) - 64  # for the keys around the data
    is_truncated = False
    for row in rows:
        text = dump_json([_value(value) for value in row])
        left_bytes -= len(text.encode()) + 1
        if left_bytes < 0 or len(written) == max_rows:
            is_truncated = True
            break
        written.append(text)
    if is_truncated and not written:
        raise InvalidRequest(f"one row has more than {max_bytes} bytes: select fewer columns, or cut them with substr")
    return f'{{"columns":{names},"rows":[{",".join(written)}],"is_truncated":{dump_json(is_truncated)}}}'


def _value(value: Any) -> Any:
    """Convert a value to JSON. Bytes and non-finite numbers become text."""
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str):
        return _text(value)
    return value


def _text(value: str) -> str:
    return value.encode(errors="replace").decode()
