"""A journal of any earlier commit opens, with what is in it; one that cannot be opened says why and what to do."""

import asyncio
import tracemalloc

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, text

from pagantic_common.domain.errors import PreconditionFailed
from services.orchestrator.adapters.journal.database import check_url
from services.orchestrator.adapters.journal.schema import SCHEMA, TABLES
from services.orchestrator.adapters.journal.sql_journal import SqlJournal
from services.orchestrator.core.admission.budget import Amount, Budget, Period
from services.orchestrator.core.conversation.memory import Summary
from services.orchestrator.core.model.keys import Account
from services.orchestrator.ports.journal import UsageTotal
from tests.support.keys import execution, session

# What differs between the databases, as the journals of each were made.
WORDS = {
    "sqlite": {"ORDINAL": "INTEGER PRIMARY KEY AUTOINCREMENT", "REAL": "DOUBLE", "BYTES": "BLOB"},
    "postgresql": {"ORDINAL": "BIGSERIAL PRIMARY KEY", "REAL": "DOUBLE PRECISION", "BYTES": "BYTEA"},
}

# Before there were migrations, and revision 0001 since: SQLite only had the references and tables without rowid.
CONVERSATIONS = """
CREATE TABLE executions (
    ordinal {ORDINAL},
    request_id TEXT NOT NULL UNIQUE, session_id TEXT NOT NULL, trace_id TEXT NOT NULL, mode TEXT NOT NULL,
    started_at {REAL} NOT NULL, state TEXT NOT NULL, entered_at {REAL} NOT NULL, attempt INTEGER NOT NULL,
    fingerprint TEXT NOT NULL, total_steps INTEGER NOT NULL, last_step TEXT NOT NULL, last_error {BYTES},
    response {BYTES}, interrupted INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX executions_by_session ON executions (session_id, ordinal);
CREATE TABLE events (
    request_id TEXT NOT NULL, sequence INTEGER NOT NULL, event {BYTES} NOT NULL, PRIMARY KEY (request_id, sequence)
){ROWID};
CREATE TABLE sessions (session_id TEXT PRIMARY KEY NOT NULL, created_at {REAL} NOT NULL, updated_at {REAL} NOT NULL);
CREATE TABLE messages (
    session_id TEXT NOT NULL{REFERENCES}, position INTEGER NOT NULL, message {BYTES} NOT NULL,
    PRIMARY KEY (session_id, position)
){ROWID};
"""
# Revision 0002, as it was first.
OWNERS = """
ALTER TABLE executions ADD COLUMN owner TEXT NOT NULL DEFAULT '';
ALTER TABLE executions ADD COLUMN cancel_requested INTEGER NOT NULL DEFAULT 0;
{LIVE};
CREATE TABLE entries (
    request_id TEXT NOT NULL, position INTEGER NOT NULL, entry {BYTES} NOT NULL, PRIMARY KEY (request_id, position)
){ROWID};
CREATE TABLE session_state (
    session_id TEXT NOT NULL, key TEXT NOT NULL, value_json TEXT NOT NULL, PRIMARY KEY (session_id, key)
){ROWID};
CREATE TABLE summaries (session_id TEXT PRIMARY KEY NOT NULL, {COUNT} INTEGER NOT NULL, text TEXT NOT NULL);
CREATE TABLE turns (session_id TEXT PRIMARY KEY NOT NULL, request_id TEXT NOT NULL){ROWID};
CREATE TABLE owners (owner TEXT PRIMARY KEY NOT NULL, beat BIGINT NOT NULL);
CREATE TABLE usage_totals (
    session_id TEXT NOT NULL, model TEXT NOT NULL, requests BIGINT NOT NULL, prompt_tokens BIGINT NOT NULL,
    cached_prompt_tokens BIGINT NOT NULL, output_tokens BIGINT NOT NULL, cost_usd {REAL} NOT NULL,
    PRIMARY KEY (session_id, model)
){ROWID};
CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY);
INSERT INTO alembic_version VALUES ('0002');
"""
BY_OWNER = "CREATE INDEX executions_by_owner ON executions (owner, interrupted)"
LIVE = "CREATE INDEX executions_live ON executions (owner) WHERE response IS NULL"
INTERRUPTED_AT = "ALTER TABLE executions ADD COLUMN interrupted_at {REAL};"
TURNS_INDEX = "CREATE INDEX ix_turns_request_id ON turns (request_id);"

WITHOUT_ROWID = {"ROWID": " WITHOUT ROWID", "REFERENCES": ""}
WITH_ROWID = {"ROWID": "", "REFERENCES": ""}
REFERENCES = {"ROWID": " WITHOUT ROWID", "REFERENCES": " REFERENCES sessions ON DELETE CASCADE"}

# By the commit that made the shape: statements and words.
SHAPES = {
    "8243e10": (CONVERSATIONS, REFERENCES),
    "2f05fb2": (CONVERSATIONS + OWNERS, WITH_ROWID | {"LIVE": BY_OWNER, "COUNT": "covered"}),
    "2f05fb2 in a file of 8243e10": (CONVERSATIONS + OWNERS, REFERENCES | {"LIVE": BY_OWNER, "COUNT": "covered"}),
    "1a73e63": (CONVERSATIONS + OWNERS, WITH_ROWID | {"LIVE": BY_OWNER, "COUNT": "message_count"}),
    "10e44d1": (CONVERSATIONS + OWNERS, WITHOUT_ROWID | {"LIVE": LIVE, "COUNT": "message_count"}),
    "2691723": (
        CONVERSATIONS + OWNERS + INTERRUPTED_AT + TURNS_INDEX,
        WITHOUT_ROWID | {"LIVE": LIVE, "COUNT": "message_count"},
    ),
}
ROWS = """
INSERT INTO sessions VALUES ('s', 1.0, 2.0);
INSERT INTO executions (request_id, session_id, trace_id, mode, started_at, state, entered_at, attempt, fingerprint,
    total_steps, last_step, interrupted) VALUES ('r', 's', '0', 'CHAT', 1.0, 'EXECUTE', 1.5, 1, 'f', 0, '', 1);
"""


@pytest.fixture
def database_url(empty_database_url):
    return empty_database_url


def run(database_url, *scripts):
    engine = create_engine(check_url(database_url))
    with engine.begin() as db:
        for script in scripts:
            for statement in filter(str.strip, script.split(";\n")):
                db.exec_driver_sql(statement.strip().rstrip(";"))
    engine.dispose()


def make(database_url, shape):
    kind = database_url.split(":", 1)[0]
    statements, words = SHAPES[shape]
    if kind == "postgresql":
        words = words | {"ROWID": "", "REFERENCES": words["REFERENCES"]}
    run(database_url, statements.format(**words, **WORDS[kind]).replace(";", ";\n"), ROWS)


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_journal_of_any_earlier_commit_opens_with_what_is_in_it(journals, database_url, shape):
    make(database_url, shape)
    journal = await journals()
    engine = create_engine(check_url(database_url))
    with engine.begin() as db:
        found = compare_metadata(MigrationContext.configure(db), TABLES)
        # Of the same tables, columns and indexes; a file of before the migrations keeps its reference and its key.
        assert [change for change in found if isinstance(change, tuple) and not change[0].endswith("_fk")] == []
        assert db.execute(text("SELECT session_id, updated_at FROM sessions")).all() == [("s", 2.0)]
        assert db.execute(text("SELECT interrupted, owner, cancel_requested FROM executions")).all() == [(1, "", 0)]
    engine.dispose()
    assert (await journal.get(execution("r"))).is_interrupted
    await journal.put_summary(session("s"), Summary("said", 0))


async def test_usage_and_budgets_of_before_subjects_belong_to_none(journals, database_url):
    engine = create_engine(check_url(database_url))
    config = Config()
    config.set_main_option("script_location", "services.orchestrator.adapters:migrations")
    with engine.begin() as db:
        config.attributes["connection"] = db
        config.attributes["schema"] = SCHEMA
        command.upgrade(config, "0009")
        db.execute(
            text(
                "INSERT INTO usage_totals (tenant, session_id, model, requests, prompt_tokens, cached_prompt_tokens,"
                " output_tokens, cost_usd) VALUES ('acme', 's', 'm', 1, 2, 3, 4, 0.5)"
            )
        )
        db.execute(
            text(
                "INSERT INTO budgets (tenant, period, max_tokens, period_start, granted_tokens, granted_micro_usd,"
                " made_at) VALUES ('acme', 'total', 100, 0.0, 40, 0, 7.0)"
            )
        )
    engine.dispose()
    journal = await journals()
    totals = await journal.usage_totals(tenant="acme", limit=9, after="")
    assert totals.items == [UsageTotal("s", "m", 1, 2, 3, 4, 0.5, tenant="acme")]
    kept = await journal.find_budget(Account("acme"), 1.0)
    assert kept == Budget(Account("acme"), Period.TOTAL, 100, None, 0.0, Amount(40), 7.0)


async def test_the_migrations_lead_to_the_tables_and_may_be_run_by_several_at_once(journals, database_url):
    await asyncio.gather(*(journals(name) for name in ("a", "b", "c")))
    engine = create_engine(check_url(database_url))
    with engine.begin() as db:
        assert compare_metadata(MigrationContext.configure(db), TABLES) == []
    engine.dispose()


async def test_a_journal_of_a_version_to_come_is_refused_with_a_next_step(database_url, journals):
    await (await journals()).close()
    run(database_url, "UPDATE alembic_version SET version_num = '0999'")
    with pytest.raises(PreconditionFailed, match=r"was written by a later version.*PAGANTIC_ORCHESTRATOR_JOURNAL_URL"):
        await SqlJournal(database_url).open()


async def test_tables_that_are_of_no_version_are_refused_by_name(database_url, journals):
    await (await journals()).close()
    run(database_url, "ALTER TABLE usage_totals DROP COLUMN cost_usd", "DROP TABLE entries")
    with pytest.raises(PreconditionFailed, match=r"lacks 'entries', 'usage_totals.cost_usd'.*JOURNAL_URL"):
        await SqlJournal(database_url).open()


async def test_where_an_earlier_run_ended_is_known_of_what_an_earlier_version_began_again(journals, database_url):
    make(database_url, "2691723")
    engine = create_engine(check_url(database_url))
    with engine.begin() as db:
        for name, entry in (("r", b'["Admitted",{"request":{},"after_sequence":7}]'), ("q", b"of another version")):
            db.execute(text("INSERT INTO entries VALUES (:name, 0, :entry)"), {"name": name, "entry": entry})
    engine.dispose()
    assert await (await journals()).after_sequence(execution("r")) == 7


async def test_a_journal_with_much_text_is_brought_up_to_date_in_little_memory(journals, database_url):
    make(database_url, "2691723")
    engine = create_engine(check_url(database_url))
    insert = text("INSERT INTO entries VALUES (:name, 0, :entry)")
    with engine.begin() as db:
        for number in range(200):
            entry = b'["Admitted",{"request":"%s","after_sequence":1}]' % (b"x" * 200_000)
            db.execute(insert, {"name": f"r{number}", "entry": entry})
    engine.dispose()
    tracemalloc.start()
    try:
        await journals()
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < 20_000_000, "the entries have 40 MB"
