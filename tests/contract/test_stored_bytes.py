"""The counts of stored bytes are what the tables hold, whatever happens to executions and conversations."""

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from random import Random

import pytest
from sqlalchemy import create_engine, select, text

from pagantic_common.domain.errors import ErrorCode, PaganticError, failure_of
from pagantic_common.domain.messages import Message, Role
from pagantic_common.storage.database import ROW_BYTES
from services.orchestrator.adapters.journal import schema as tables
from services.orchestrator.adapters.journal.database import check_url
from services.orchestrator.adapters.journal.sealing import opened
from services.orchestrator.adapters.journal.sql_journal import SqlJournal
from services.orchestrator.adapters.journal.upkeep import purge
from services.orchestrator.core.conversation.memory import Summary
from services.orchestrator.core.execution.wait import Decision, Resolution, Signal, Wait, WaitKind
from services.orchestrator.core.model.request import KeptRequest
from services.orchestrator.core.model.response import FinishReason, InferenceOutput
from services.orchestrator.core.turn.answering import Inferred
from services.orchestrator.ports.journal import Durability
from tests.support.examples import examples
from tests.support.journal_records import NOW, admit, admitted, ended, happened, record
from tests.support.keys import execution, session

pytestmark = pytest.mark.payloads

TENANTS, IDS, SESSIONS = ("acme", "beta"), ("r1", "r2", "r3"), ("", "s1", "s2")
CONTENT = {
    "executions": ("response", "last_error"),
    "events": ("event",),
    "approvals": ("wait",),
    "signals": ("signal",),
    "kept_requests": ("request", "metadata_json"),
    "entries": ("entry",),
    "sessions": (),
    "messages": ("message",),
    "session_state": ("value_json",),
    "summaries": ("text",),
}
ROUNDS = 2
STEPS = 10 * examples(100)


def held(journal):
    """Return what the tables hold, in bytes by tenant and id: all but entries, and entries. Orphans count too."""
    held_bytes, entry_bytes = Counter(), Counter()
    with journal._engine.connect() as db:
        for name, columns in CONTENT.items():
            table = tables.TABLES.tables[name]
            own = [column.key for column in table.primary_key]
            for row in db.execute(select(table)).mappings():
                names = [row[part] for part in (("tenant", "request_id") if name == "executions" else own)]
                values = [row[column] and opened(db, table.c[column], row[column], *names) for column in columns]
                if name == "executions" and row["response"] is None:
                    values = []
                encoded = [value.encode() if isinstance(value, str) else value or b"" for value in values]
                key = row["tenant"], row.get("request_id") or row["session_id"]
                size = ROW_BYTES + sum(map(len, encoded))
                (entry_bytes if name == "entries" else held_bytes)[key] += size
    return held_bytes, entry_bytes


def counted(journal):
    """Return the counts of executions and sessions in the form of `held`."""
    stored_bytes, entry_bytes = Counter(), Counter()
    with journal._engine.connect() as db:
        for row in db.execute(select(tables.executions)).mappings():
            stored_bytes[row["tenant"], row["request_id"]] = row["stored_bytes"]
            if row["entry_bytes"]:
                entry_bytes[row["tenant"], row["request_id"]] = row["entry_bytes"]
        for row in db.execute(select(tables.sessions)).mappings():
            stored_bytes[row["tenant"], row["session_id"]] = row["stored_bytes"]
    return stored_bytes, entry_bytes


class Life:
    """Draws what happens to a journal of two owners. Much of it is refused, and changes nothing then."""

    def __init__(self, journals, random):
        self._journals = journals
        self._random = random
        self._sequence = 0
        self.done = Counter()

    async def step(self):
        journal = self._random.choice(self._journals)
        acts = {self._run: 8, self._converse: 4, self._keep: 4, self._forget: 1}
        (act,) = self._random.choices(list(acts), list(acts.values()))
        with suppress(PaganticError):
            await act(journal, self._random.choice(TENANTS))
            self.done[act.__name__] += 1

    def _text(self):
        return self._random.choice(["", "word", 'é"\n😀']) * self._random.randrange(1, 30)

    def _next(self):
        self._sequence += 1
        return self._sequence

    def _record(self, tenant):
        fields = {"session_id": self._random.choice(SESSIONS), "tenant": tenant}
        if self._random.random() < 0.5:
            fields["kept"] = KeptRequest(self._text().encode(), {"note": self._text()})
        if self._random.random() < 0.5:
            fields["last_failure"] = failure_of(ErrorCode.TOOL_TIMEOUT, self._text())
        return record(self._random.choice(IDS), **fields)

    async def _stored(self, journal, tenant):
        return await journal.get(execution(self._random.choice(IDS), tenant))

    async def _run(self, journal, tenant):
        made = self._record(tenant)
        said = Inferred(InferenceOutput(self._text(), FinishReason.STOP))
        match self._random.randrange(6):
            case 0:
                fields = {"session_id": made.session_id, "tenant": tenant, "kept": made.kept}
                await admit(journal, made.request_id, takes_turn=self._random.random() < 0.5, **fields)
            case 1:
                begun = journal.admit_new(made, admitted(made.request_id, made.session_id))
                write = replace(happened(made, self._next()), entries=(said,), position=self._next())
                await asyncio.gather(begun, journal.write(write), journal.write(happened(made, self._next())))
            case 2:
                stored = replace(await self._stored(journal, tenant), last_failure=made.last_failure)
                write = replace(happened(stored, self._next()), entries=(said, said), position=self._next())
                self._next()
                await journal.write(write)
            case 3:
                stored = replace(await self._stored(journal, tenant), last_failure=made.last_failure)
                turn = (Message(Role.USER, self._text()),) if stored.session_id else ()
                before = replace(happened(stored, self._next()), entries=(said,), position=self._next())
                await asyncio.gather(journal.write(before), journal.write(ended(stored, self._next(), turn=turn)))
            case 4:
                stored = await self._stored(journal, tenant)
                await journal.admit_again(replace(made, request_id=stored.request_id), admitted(), stored)
            case 5:
                await journal.release([execution(name, tenant) for name in IDS])
                await journal.claim(execution(made.request_id, tenant))

    async def _converse(self, journal, tenant):
        key = session(self._random.choice(SESSIONS[1:]), tenant)
        messages = [Message(Role.USER, self._text()) for _ in range(self._random.randrange(3))]
        match self._random.randrange(4):
            case 0:
                await journal.append_messages(key, messages)
            case 1:
                await journal.replace_messages(key, {self._random.randrange(3): Message(Role.USER, self._text())})
            case 2:
                await journal.update_state(key, {self._random.choice("ab"): f'"{self._text()}"'}, ["b"])
            case 3:
                await journal.put_summary(key, Summary(self._text(), self._random.randrange(3)))

    async def _keep(self, journal, tenant):
        key, call = execution(self._random.choice(IDS), tenant), self._random.choice(["c1", "c2"])
        later = NOW + timedelta(minutes=5)
        match self._random.randrange(6):
            case 0:
                await journal.get(key)  # only executions ask
                arguments = f'{{"to": "{self._text()}"}}'
                asked = Wait(key.request_id, call, WaitKind.APPROVAL, NOW, later, "send", "why", arguments)
                await journal.begin_wait(key, asked)
            case 1:
                await journal.resolve_wait(key, call, Resolution(Decision.APPROVED, NOW, "ann", "{}", self._text()))
            case 2:
                await journal.update_metadata(key, {"note": self._text(), "more": self._text()}, ["other"])
            case 3:
                await journal.add_signal(key, Signal(self._random.choice("abc"), "paid", self._text(), b"d" * 32))
            case 4:
                await journal.get(key)
                await journal.begin_wait(key, Wait(key.request_id, "plan/x", WaitKind.SIGNAL, NOW, later, "paid"))
                if (signal := await journal.next_signal(key, "paid")) is not None:
                    taken = Resolution(Decision.SIGNALLED, NOW, payload_json=signal.payload_json, signal_id=signal.id)
                    await journal.take_signal(key, "plan/x", taken)
            case 5:
                await journal.drop_signal(key, "plan/x", self._random.choice("abc"))

    async def _forget(self, journal, tenant):
        if self._random.random() < 0.1:
            await journal._purger.purge()
        elif self._random.random() < 0.5:
            await journal.delete_execution(execution(self._random.choice(IDS), tenant))
        elif self._random.random() < 0.5:
            await journal.delete_session(session(self._random.choice(SESSIONS[1:]), tenant))


@pytest.mark.sql_only
@pytest.mark.parametrize("seed", range(ROUNDS))
async def test_the_counts_are_what_the_tables_hold(journals, seed, monkeypatch):
    monkeypatch.setattr(purge, "FIRST_PURGE_S", 1e6)  # nothing is purged between two looks
    settings = {"retention_s": 1e-3, "session_retention_s": 1e-3, "durability": Durability.PROCESS}
    both = [await journals(name, **settings) for name in ("a", "b")]
    life = Life(both, Random(seed))  # noqa: S311 - the same whenever it runs
    largest = 0
    for number in range(STEPS // ROUNDS):
        await life.step()
        held_bytes, entry_bytes = held(both[0])
        assert counted(both[0]) == (held_bytes, entry_bytes), f"after step {number}"
        for tenant in TENANTS:
            mine = [size for sizes in (held_bytes, entry_bytes) for key, size in sizes.items() if key[0] == tenant]
            assert (await both[1].tenant_use(tenant)).used_bytes == sum(mine)
            largest = max(largest, sum(mine))
        for name in SESSIONS[1:]:
            assert await both[1].session_bytes(session(name, "acme")) == held_bytes["acme", name]
    assert largest > 20 * ROW_BYTES, "something was stored"
    assert min(life.done[name] for name in ("_run", "_converse", "_keep", "_forget")) > 0, "each was done"


@pytest.mark.sql_only
async def test_writes_of_two_owners_to_one_execution_and_conversation_are_all_counted(journals):
    owners = [await journals(name) for name in ("a", "b")]
    await admit(owners[0], kept=KeptRequest(b"x", {"note": ""}), tenant="acme")
    works = [owners[0].write(happened(record(tenant="acme"), number)) for number in range(1, 20)]
    for number in range(20):
        owner, key = owners[number % 2], session("s", "acme")
        works.append(owner.update_metadata(execution("r", "acme"), {f"k{number}": "x" * number}, []))
        works.append(owner.append_messages(key, [Message(Role.USER, "x" * number)]))
        works.append(owner.update_state(key, {"k": f'"{"x" * number}"'}, []))
        works.append(owner.put_summary(key, Summary("x" * number, number)))
    await asyncio.gather(*works)
    assert counted(owners[0]) == held(owners[0])


@pytest.mark.sql_only
async def test_an_execution_that_runs_again_counts_what_is_left(journal):
    await admit(journal, kept=KeptRequest(b"request", {"note": "x"}))
    asked = Wait("r", "c1", WaitKind.APPROVAL, NOW, NOW + timedelta(minutes=5), "send", "why", "{}")
    await journal.begin_wait(execution("r"), asked)
    await journal.add_signal(execution("r"), Signal("s1", "paid", "1", b"d" * 32))
    stored = replace(await journal.get(execution("r")), last_failure=failure_of(ErrorCode.TOOL_TIMEOUT, "late"))
    await journal.write(happened(stored, 1))
    await journal.write(ended(stored, 2))
    again = await journal.get(execution("r"))
    assert await journal.admit_again(record(kept=again.kept), admitted(), again) == 2
    assert counted(journal) == held(journal)
    await journal.write(ended(again, 3))
    assert counted(journal) == held(journal)


async def test_an_earlier_journal_is_counted_when_it_is_opened(database_url):
    journal = SqlJournal(database_url)
    await journal.open()
    for number in range(3):
        await admit(journal, f"r{number}", session_id="s", kept=KeptRequest(b"request", {"note": "é"}))
        failed = record(f"r{number}", session_id="s", last_failure=failure_of(ErrorCode.TOOL_TIMEOUT, "late"))
        await journal.write(happened(failed, 1, 2))
    await admit(journal, "plain")
    for name in ("r0", "plain"):
        await journal.write(ended(replace(await journal.get(execution(name)), last_failure=failed.last_failure), 3))
    await journal.append_messages(session("s"), [Message(Role.USER, "hé")])
    await journal.update_state(session("s"), {"k": '"é"'}, [])
    await journal.put_summary(session("s"), Summary("é", 1))
    before = counted(journal)
    await journal.close()
    _back_to_revision_12(database_url)
    await (again := SqlJournal(database_url)).open()
    assert counted(again) == before == held(again)
    await again.close()


def _back_to_revision_12(database_url):
    engine = create_engine(check_url(database_url))
    with engine.begin() as db:
        for index in ("executions_by_size", "executions_parked", "waits_open"):
            db.execute(text(f"DROP INDEX {index}"))
        db.execute(text("CREATE INDEX approvals_open ON approvals (tenant, requested_at) WHERE is_open = 1"))
        db.execute(text("DROP TABLE signals"))
        for table, column in (
            ("approvals", "kind"),
            ("approvals", "name"),
            ("executions", "wakes_at"),
            ("executions", "parked_s"),
            ("executions", "stored_bytes"),
            ("executions", "entry_bytes"),
            ("sessions", "stored_bytes"),
        ):
            db.execute(text(f"ALTER TABLE {table} DROP COLUMN {column}"))
        db.execute(text("UPDATE alembic_version SET version_num = '0012'"))
    engine.dispose()
