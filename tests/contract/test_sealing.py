"""The journal's content, encrypted, in each database."""

import base64
import hashlib
from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from sqlalchemy import text

from pagantic_common.domain.errors import ErrorCode, InvalidRequest, PreconditionFailed, failure_of
from pagantic_common.domain.messages import Message, Role
from services.orchestrator.adapters.journal import sealing
from services.orchestrator.adapters.journal.schema import TABLES
from services.orchestrator.adapters.journal.sealing import (
    JournalKey,
    SealedBytes,
    SealedText,
    content_size,
    read_journal_keys,
)
from services.orchestrator.adapters.journal.sql_journal import SqlJournal
from services.orchestrator.core.conversation.memory import Summary
from services.orchestrator.core.execution.wait import Signal, Wait, WaitKind
from services.orchestrator.core.model.keys import SessionKey
from services.orchestrator.core.model.request import KeptRequest
from tests.support.journal_records import NOW, SAID, admit, ended, happened
from tests.support.keys import execution

KEYS = [base64.b64encode(bytes([number] * 32)).decode() for number in (1, 2)]
TALK = SessionKey("acme", "talk")
SECRET = "the harbour of Lindau"  # noqa: S105 - what a conversation says


@pytest.fixture
async def opened(database_url, tmp_path):
    """Open the one database with keys, the first of which encrypts; the journal opened before is closed."""
    open_now = []

    async def open_with(*keys, **settings):
        for journal in open_now:
            await journal.close()
        open_now.clear()
        path = None
        if keys:
            path = tmp_path / "keys"
            path.write_text("\n".join(keys))
        journal = SqlJournal(database_url, sealing=read_journal_keys(path, **settings))
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


OTHERS = SessionKey("beta", "theirs")
HELLO = (Message(Role.USER, "hello"),)


async def test_content_that_is_moved_to_another_row_or_tenant_is_found(opened):
    journal = await opened(KEYS[0])
    await remember(journal)
    await journal.append_messages(TALK, HELLO * 2)
    await journal.put_summary(OTHERS, Summary("mine", 1))
    await journal.update_state(OTHERS, {"note": '"mine"'}, [])
    await journal.put_summary(OTHERS, Summary("mine", 1))
    moves = {
        "UPDATE summaries SET text = (SELECT text FROM summaries WHERE tenant = 'acme')": journal.get_summary(OTHERS),
        "UPDATE session_state SET value_json = (SELECT value_json FROM session_state WHERE tenant = 'acme') "
        "WHERE tenant = 'beta'": journal.session_state(OTHERS),
        "UPDATE messages SET message = (SELECT message FROM messages WHERE position = 0)": journal.history(TALK),
    }
    assert (await journal.get_summary(OTHERS)).text == "mine"
    for statement, reading in moves.items():
        with journal._engine.begin() as db:
            assert db.execute(text(statement)).rowcount
        with pytest.raises(PreconditionFailed, match="was changed"):
            await reading


READS = {
    "events.event": SqlJournal.timeline,
    "entries.entry": SqlJournal.entries,
    "kept_requests.request": SqlJournal.get,
    "kept_requests.metadata_json": SqlJournal.get,
    "executions.response": SqlJournal.get,
    "executions.last_error": SqlJournal.get,
    "approvals.approval": partial(SqlJournal.get_wait, wait_id="c1"),
    "signals.signal": partial(SqlJournal.next_signal, name="paid"),
}


@pytest.mark.parametrize("place", READS)
async def test_content_of_another_execution_is_found(opened, place):
    journal = await opened(KEYS[0])
    for name in ("r1", "r2"):
        await admit(journal, name, kept=KeptRequest(name.encode(), {"note": name}))
        asked = Wait(name, "c1", WaitKind.APPROVAL, NOW, NOW + timedelta(minutes=5), "send", "why", "{}")
        await journal.begin_wait(execution(name), asked)
        await journal.add_signal(execution(name), Signal("s1", "paid", f'"{name}"', b"d" * 32))
        stored = replace(await journal.get(execution(name)), last_failure=failure_of(ErrorCode.TOOL_TIMEOUT, name))
        await journal.write(replace(happened(stored, 1), entries=(SAID,), position=1))
        await journal.write(ended(stored, 2))
        await READS[place](journal, execution(name))
    table, column = place.split(".")
    others = f"SELECT {column} FROM {table} WHERE request_id = 'r1' ORDER BY {column} LIMIT 1"  # noqa: S608
    with journal._engine.begin() as db:
        db.execute(text(f"UPDATE {table} SET {column} = ({others}) WHERE request_id = 'r2'"))  # noqa: S608
    with pytest.raises(PreconditionFailed, match="was changed"):
        await READS[place](journal, execution("r2"))


async def test_content_of_earlier_versions_is_read_until_only_sealed_rows_are(opened):
    journal = await opened(KEYS[0])
    await remember(journal)
    with journal._engine.begin() as db:
        db.execute(text("UPDATE summaries SET text = :text"), {"text": sealed_for_its_column("summaries.text", SECRET)})
        db.execute(text("UPDATE session_state SET value_json = :text"), {"text": f'"{SECRET}"'})
    assert await read(journal) == REMEMBERED
    strict = await opened(KEYS[0], is_strict=True)
    for reading in (strict.get_summary(TALK), strict.session_state(TALK)):
        with pytest.raises(PreconditionFailed, match="JOURNAL_KEY_STRICT"):
            await reading
    await remember(strict)
    assert await read(strict) == REMEMBERED


def sealed_for_its_column(place, content):
    """Encrypt a text as versions before 0.1.0 did."""
    key, nonce = base64.b64decode(KEYS[0]), bytes(range(12))
    encrypted = AESGCM(key).encrypt(nonce, content.encode(), place.encode())
    return "\x01P1" + base64.b64encode(b"\xff\xffP1" + hashlib.sha256(key).digest()[:4] + nonce + encrypted).decode()


@pytest.mark.parametrize(
    ("key", "place", "encrypted"),
    [
        (b"\x01" * 32, b"", "ce546ef63c9cc60765923609b33a9a1974e96e52daf2fcf7075e2271"),
        (b"\x03" * 32, b"c2sp.org/XAES-256-GCM", "986ec1832593df5443a179437fd083bf3fdb41abd740a21f71eb769d"),
    ],
)
def test_the_cipher_is_that_of_the_specification(key, place, encrypted):
    nonce, plain = b"ABCDEFGHIJKLMNOPQRSTUVWX", b"XAES-256-GCM"
    assert JournalKey(key).encrypt(plain, place, nonce).hex() == encrypted
    assert JournalKey(key).decrypt(bytes.fromhex(encrypted), place, nonce) == plain


def test_values_share_the_first_half_of_a_nonce_for_a_while(monkeypatch):
    monkeypatch.setattr(sealing, "SHARED_VALUES", 3)
    key = JournalKey(b"k" * 32)
    nonces = [key.make_nonce() for _ in range(9)]
    assert [len({nonce[:12] for nonce in nonces[start : start + 3]}) for start in (0, 3, 6)] == [1, 1, 1]
    assert len({nonce[:12] for nonce in nonces}) == 3
    assert len({nonce[12:] for nonce in nonces}) == 9


@pytest.mark.parametrize("content", ["", "é" * 100])
async def test_the_size_of_content_is_known_without_its_key(opened, content):
    journal = await opened(KEYS[0])
    await journal.append_messages(TALK, HELLO)
    await journal.put_summary(TALK, Summary(content, 1))
    with journal._engine.connect() as db:
        stored = db.execute(text("SELECT text FROM summaries")).scalar_one()
    assert stored != content
    assert content_size(stored) == len(content.encode()) == content_size(content) == content_size(content.encode())
    assert content_size(sealed_for_its_column("summaries.text", content)) == len(content.encode())


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
        *("session_state.value_json", "summaries.text", "approvals.approval", "signals.signal"),
        *("kept_requests.request", "kept_requests.metadata_json"),
    }


@pytest.mark.parametrize("content", ["", "short", base64.b64encode(b"x" * 31).decode(), f"{KEYS[0]}\n!"])
def test_a_file_without_right_keys_is_refused_without_quoting_it(tmp_path, content):
    path = tmp_path / "keys"
    path.write_text(content)
    with pytest.raises(InvalidRequest, match="JOURNAL_KEY_FILE") as refused:
        read_journal_keys(path)
    assert not content or content not in str(refused.value)
