"""The journal's content, encrypted, in each database."""

import base64

import pytest
from sqlalchemy import text

from pagantic_common.domain.errors import InvalidRequest, PreconditionFailed
from services.orchestrator.adapters.journal.schema import TABLES
from services.orchestrator.adapters.journal.sealing import SealedBytes, SealedText, read_journal_keys
from services.orchestrator.adapters.journal.sql_journal import SqlJournal
from services.orchestrator.core.conversation.memory import Summary
from services.orchestrator.core.model.keys import SessionKey

KEYS = [base64.b64encode(bytes([number] * 32)).decode() for number in (1, 2)]
TALK = SessionKey("acme", "talk")
SECRET = "the harbour of Lindau"  # noqa: S105 - what a conversation says


@pytest.fixture
async def opened(database_url, tmp_path):
    """Open the one database with keys, the first of which encrypts; the journal opened before is closed."""
    open_now = []

    async def open_with(*keys):
        for journal in open_now:
            await journal.close()
        open_now.clear()
        path = None
        if keys:
            path = tmp_path / "keys"
            path.write_text("\n".join(keys))
        journal = SqlJournal(database_url, sealing=read_journal_keys(path))
        await journal.open()
        open_now.append(journal)
        return journal

    yield open_with
    for journal in open_now:
        await journal.close()


def raw_rows(journal):
    """Return all that the database holds, as it is stored."""
    with journal._engine.connect() as db:
        return [
            bytes(value) if isinstance(value, memoryview | bytes) else str(value).encode()
            for table in TABLES.tables
            for row in db.execute(text(f"SELECT * FROM {table}"))  # noqa: S608
            for value in row
        ]


async def remember(journal):
    await journal.update_state(TALK, {"note": f'"{SECRET}"'}, [])
    await journal.put_summary(TALK, Summary(SECRET, 1))


async def read(journal):
    return (await journal.session_state(TALK))["note"], (await journal.get_summary(TALK)).text


REMEMBERED = (f'"{SECRET}"', SECRET)


async def test_a_copy_of_the_database_tells_nothing(opened):
    journal = await opened(KEYS[0])
    await remember(journal)
    assert await read(journal) == REMEMBERED
    stored = raw_rows(journal)
    assert b"talk" in stored
    assert not any(SECRET.encode() in value for value in stored)


async def test_a_key_is_replaced_and_what_was_stored_in_plain_stays_readable(opened):
    await remember(await opened())
    assert await read(await opened(KEYS[0])) == REMEMBERED
    journal = await opened(KEYS[0])
    await remember(journal)
    journal = await opened(KEYS[1], KEYS[0])
    assert await read(journal) == REMEMBERED
    await remember(journal)
    assert await read(await opened(KEYS[1])) == REMEMBERED
    for keys in ([KEYS[0]], []):
        journal = await opened(*keys)
        with pytest.raises(PreconditionFailed, match="JOURNAL_KEY_FILE lacks"):
            await read(journal)


async def test_changed_content_is_found_and_content_of_another_column_is_no_content(opened):
    journal = await opened(KEYS[0])
    await remember(journal)
    with journal._engine.begin() as db:
        db.execute(text("UPDATE summaries SET text = (SELECT value_json FROM session_state)"))
    with pytest.raises(PreconditionFailed, match="was changed"):
        await journal.get_summary(TALK)


def test_every_column_of_content_is_sealed():
    sealed = {
        f"{table.name}.{column.name}": column.type
        for table in TABLES.tables.values()
        for column in table.columns
        if isinstance(column.type, SealedBytes | SealedText)
    }
    assert all(place == kind.place for place, kind in sealed.items())
    assert set(sealed) == {
        *("executions.last_error", "executions.response", "events.event", "entries.entry", "messages.message"),
        *("session_state.value_json", "summaries.text", "approvals.approval"),
        *("kept_requests.request", "kept_requests.metadata_json"),
    }


@pytest.mark.parametrize("content", ["", "short", base64.b64encode(b"x" * 31).decode(), f"{KEYS[0]}\n!"])
def test_a_file_without_right_keys_is_refused_without_quoting_it(tmp_path, content):
    path = tmp_path / "keys"
    path.write_text(content)
    with pytest.raises(InvalidRequest, match="JOURNAL_KEY_FILE") as refused:
        read_journal_keys(path)
    assert not content or content not in str(refused.value)
