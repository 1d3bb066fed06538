"""`python -m tests.bench.parked [--count N] [--postgres]`: what parked executions cost, and how fast they wake.

A chat whose tool call waits for an approval is parked, and its rows are copied until the journal has the count. Then an
orchestrator with scripted services starts on it. The journal is a SQLite file,
or a database of a PostgreSQL that this program starts.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import tempfile
import time
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random

import psutil
from sqlalchemy import create_engine, text

from services.orchestrator.adapters.journal.database import check_url
from services.orchestrator.adapters.journal.sql_journal import SqlJournal
from services.orchestrator.core.model.keys import ExecutionKey
from tests.integration.orchestrator.test_approvals import ASK, asking, resolve
from tests.integration.orchestrator.test_background import begin
from tests.support.databases import postgres_url
from tests.support.orchestrator_app import ended, orchestrator, system_request
from tests.support.postgres import find_programs, running_postgres
from tests.support.scripted_services import ScriptedInference, answer, scripted_services

TABLES = ("executions", "events", "entries", "approvals")
SIGNALLED, DUE, MAX_RUNNING = 200, 1000, 256
WEEK_S, DUE_AFTER_S = 7 * 86_400.0, 12.0
TEN_YEARS_S = 10 * 365 * 86_400.0


def copy_rows(url: str, count: int) -> None:
    """Copy the rows of the execution `r` under the ids r0, r1 and so on."""
    engine = create_engine(check_url(url))
    numbers = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < :count) "
    with engine.begin() as db:
        for table in TABLES:
            row = db.execute(text(f"SELECT * FROM {table}")).keys()  # noqa: S608 - our names
            names = [name for name in row if name != "ordinal"]
            values = [_value_of(name, db.dialect.name) for name in names]
            statement = f"{numbers} SELECT {', '.join(values)} FROM {table} t, n WHERE t.request_id = 'r'"  # noqa: S608
            statement = f"INSERT INTO {table} ({', '.join(names)}) {statement}"
            db.execute(text(statement), {"count": count})
    engine.dispose()


def _value_of(column: str, dialect: str) -> str:
    """Return the SQL of a copied value. The admitted request names its id, too."""
    if column == "request_id":
        return "'r' || n.i"
    if column != "entry":
        return f"t.{column}"
    names = '\'"request_id":"r"\', \'"request_id":"r\' || n.i || \'"\''
    if dialect == "sqlite":
        return f"CAST(replace(CAST(t.entry AS TEXT), {names}) AS BLOB)"
    return f"convert_to(replace(convert_from(t.entry, 'UTF8'), {names}), 'UTF8')"


def parked_count(url: str) -> int:
    """Return the number of parked executions."""
    engine = create_engine(check_url(url))
    with engine.connect() as db:
        count = int(db.execute(text("SELECT count(*) FROM executions WHERE interrupted = 2")).scalar_one())
    engine.dispose()
    return count


def say(line: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{line}\n")


def rss_mib() -> float:
    """Return the resident memory of this process in MiB."""
    gc.collect()
    return psutil.Process().memory_info().rss / 2**20


async def wait_until_parked(stub) -> None:
    """Wait until an execution is parked and its place is free."""
    while stub.executions.registry.count or parked_count(stub.url) == 0:  # noqa: ASYNC110 - the database has no event
        await asyncio.sleep(0.05)


async def park(url: str, folder: Path, count: int, wait_s: float) -> None:
    """Park an execution whose call waits so long, and copy it."""
    async with orchestrator(folder, asking(), journal=SqlJournal(url, retention_s=TEN_YEARS_S)) as stub:
        stub.executions.waits._parked_wait_s = wait_s
        await begin(stub, system_request("How late is it?", request_id="r", tool_rules=[ASK], background=True))
        while stub.executions.registry.count or parked_count(url) == 0:  # noqa: ASYNC110 - the database has no event
            await asyncio.sleep(0.05)
    copy_rows(url, count)


@asynccontextmanager
async def served(url: str, folder: Path):
    """Serve the journal with scripted services and a loop that wakes."""
    services, journal = (
        scripted_services(ScriptedInference(answer("It is noon."))),
        SqlJournal(url, retention_s=TEN_YEARS_S),
    )
    loop = {"resumes_plans": True}
    async with orchestrator(folder, services, journal=journal, presence=loop, max_running=MAX_RUNNING) as stub:
        yield stub


async def measure(url: str, folder: Path, count: int) -> None:
    """Park, copy, start, wake, and print what each took."""
    await park(url, folder, count, WEEK_S)
    rss_before, began_s = rss_mib(), time.perf_counter()
    async with served(url, folder) as stub:
        say(f"{count} parked: started in {time.perf_counter() - began_s:.2f} s")
        await asyncio.sleep(3)
        say(f"memory of the process: {rss_before:.0f} MiB before, {rss_mib():.0f} MiB after the start")
        stub.journal.space.ask()
        say(f"bytes each: {stub.journal.space.used_bytes() / count:.0f}")
        took_s = []
        for number in Random(1).sample(range(count), SIGNALLED):  # noqa: S311 - no secret
            began_s = time.perf_counter()
            await resolve(stub, request_id=f"r{number}")
            took_s.append(time.perf_counter() - began_s)
            await ended(stub, f"r{number}")
        took_s.sort()
        say(f"decision to wake: p50 {took_s[len(took_s) // 2] * 1000:.1f} ms, p99 {took_s[-2] * 1000:.1f} ms")


async def measure_due(url: str, folder: Path) -> None:
    """Let many executions be due at once, and print how long they take."""
    await park(url, folder, DUE, DUE_AFTER_S)
    async with served(url, folder) as stub:
        record = await stub.journal.get(ExecutionKey("default", "r0"))
        late_s, most = record.wakes_at.timestamp() - time.time(), 0
        say(f"{DUE} due in {late_s:.1f} s")
        while (left := parked_count(url)) > 0:
            most = max(most, stub.executions.registry.count)
            late_s = time.time() - record.wakes_at.timestamp()
            if left == DUE + 1:
                first_s = late_s
            await asyncio.sleep(0.02)
        say(f"the first was late by {first_s:.2f} s at most, all were awake after {late_s:.1f} s")
        say(f"{most} ran at the same time, {MAX_RUNNING} may")


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.parked", description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--postgres", action="store_true", help="use a PostgreSQL of its own in place of SQLite files")
    options = parser.parse_args()
    with ExitStack() as stack:
        server = stack.enter_context(running_postgres(find_programs())) if options.postgres else None
        for number, measured in enumerate((partial(measure, count=options.count), measure_due)):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            url = f"sqlite:///{folder}/{number}.sqlite3" if server is None else postgres_url(server)
            asyncio.run(measured(url, folder))


if __name__ == "__main__":
    main()
