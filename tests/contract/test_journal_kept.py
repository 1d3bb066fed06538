"""What callers keep with executions, for SQLite and PostgreSQL, plain and sealed."""

from dataclasses import replace

import pytest

from pagantic_common.domain.calls.principal import DEFAULT_TENANT
from pagantic_common.domain.errors import Aborted, InvalidRequest, NotFound, PreconditionFailed
from pagantic_common.domain.messages import Message, Role
from services.orchestrator.core.conversation.memory import Summary
from services.orchestrator.core.model.request import KeptRequest, Mode
from services.orchestrator.core.model.request_check import MAX_METADATA_BYTES
from tests.support.journal_records import TURN, admit, admitted, ended, happened, record
from tests.support.keys import execution, session

pytestmark = pytest.mark.payloads


def kept(**metadata):
    return KeptRequest(b"a request", metadata)


async def listed(journal, metadata, limit=50, after="", tenant=DEFAULT_TENANT, **bounds):
    return await journal.list_executions(
        tenant=tenant, limit=limit, after=after, session_id="", state=None, metadata=metadata, **bounds
    )


async def test_a_request_is_kept_as_long_as_its_execution(journal):
    await admit(journal, kept=kept(colour="red"))
    assert (await journal.get(execution("r"))).kept == kept(colour="red")
    await journal.write(ended(record(), 1))
    assert (await journal.get(execution("r"))).kept == kept(colour="red")
    await journal.admit_new(record("new", kept=kept()), admitted("new"))
    assert (await journal.get(execution("new"))).kept == kept()
    await admit(journal, "plain")
    assert (await journal.get(execution("plain"))).kept is None


async def test_metadata_is_updated_within_its_bounds(journal):
    await admit(journal, kept=kept(colour="red", size="1"))
    updated = await journal.update_metadata(execution("r"), {"colour": "blüe", "shape": "round"}, ["size"])
    assert updated.kept == kept(colour="blüe", shape="round") == (await journal.get(execution("r"))).kept
    with pytest.raises(InvalidRequest, match="at most 64 of 65536 bytes"):
        await journal.update_metadata(execution("r"), {"long": "x" * MAX_METADATA_BYTES}, [])
    assert "long" not in (await journal.get(execution("r"))).kept.metadata
    await admit(journal, "plain")
    with pytest.raises(PreconditionFailed, match="keep_request"):
        await journal.update_metadata(execution("plain"), {"a": "b"}, [])
    with pytest.raises(NotFound):
        await journal.update_metadata(execution("r", "acme"), {"a": "b"}, [])


async def test_executions_are_listed_by_metadata(journal):
    for number in range(6):
        await admit(journal, f"r{number}", kept=kept(kind="odd" if number % 2 else "even", number=str(number)))
    await admit(journal, "plain")
    first = await listed(journal, {"kind": "odd"}, limit=2)
    assert [one.request_id for one in first.items] == ["r5", "r3"]
    assert first.items[0].kept == KeptRequest(b"", {"kind": "odd", "number": "5"})
    last = await listed(journal, {"kind": "odd"}, limit=2, after=first.next_token)
    assert ([one.request_id for one in last.items], last.next_token) == (["r1"], "")
    assert (await listed(journal, {"kind": "odd", "number": "2"})).items == []
    assert (await listed(journal, {"kind": "odd"}, tenant="acme")).items == []


@pytest.mark.sql_only
async def test_a_page_by_metadata_ends_after_many_others(journal, monkeypatch):
    monkeypatch.setattr("services.orchestrator.adapters.journal.stores.kept_requests.LOOKED_AT", 2)
    for number in range(5):
        await admit(journal, f"r{number}", kept=kept(number=str(number)))
    found, token, pages = [], "", 0
    while pages == 0 or token:
        page = await listed(journal, {"number": "0"}, after=token)
        found, token, pages = found + page.items, page.next_token, pages + 1
    assert ([one.request_id for one in found], pages) == (["r0"], 3)


@pytest.mark.sql_only
async def test_a_page_of_much_metadata_fits_a_message(journal):
    for number in range(4):
        await admit(journal, f"r{number}", kept=kept(kind="k" if number else "other", note="x" * 40_000))
    pages, token = [], ""
    while not pages or token:
        page = await listed(journal, {"kind": "k"}, after=token)
        pages, token = [*pages, [one.request_id for one in page.items]], page.next_token
    assert pages == [["r3", "r2", "r1"]]
    for max_bytes, sizes in ((90_000, [2, 1]), (1, [1, 1, 1])):
        found, token = [], ""
        while not found or token:
            page = await listed(journal, {"kind": "k"}, after=token, max_bytes=max_bytes)
            found, token = [*found, len(page.items)], page.next_token
        assert [size for size in found if size] == sizes


async def test_a_deleted_execution_leaves_nothing(journal):
    await admit(journal, kept=kept(a="b"))
    await journal.write(happened(record(), 1))
    with pytest.raises(PreconditionFailed, match="cancel it first"):
        await journal.delete_execution(execution("r"))
    await journal.write(ended(record(), 2))
    await journal.delete_execution(execution("r"))
    for ask in (journal.get, journal.timeline, journal.delete_execution):
        with pytest.raises(NotFound):
            await ask(execution("r"))
    await admit(journal)
    assert (await journal.get(execution("r"))).kept is None


async def test_an_interrupted_execution_in_the_background_is_taken_up(journals):
    first = await journals("first")
    await first.admit(record("later", is_background=True), admitted("later"))
    await first.admit(record("chat"), admitted("chat"))
    await first.admit(record("plan", mode=Mode.PLAN), admitted("plan"))
    await first.release([execution("later"), execution("chat"), execution("plan")])
    assert await first.interrupted(with_plans=True) == [execution("later"), execution("plan")]
    assert await first.interrupted(with_plans=False) == [execution("later")]
    assert (await first.get(execution("later"))).is_background


async def test_messages_are_appended_to_a_conversation_without_a_running_turn(journal):
    appended = await journal.append_messages(session("s"), TURN)
    assert (appended.message_count, appended.messages) == (2, ())
    await admit(journal, session_id="s", takes_turn=True)
    with pytest.raises(Aborted, match="another turn"):
        await journal.append_messages(session("s"), TURN)
    await journal.write(ended(replace(record(), session_id="s"), 1, turn=TURN))
    assert (await journal.append_messages(session("s"), TURN[:1])).message_count == 5
    assert (await journal.get_session(session("s"))).messages == (*TURN, *TURN, TURN[0])


async def test_messages_are_replaced_and_keep_their_positions(journal):
    await journal.append_messages(session("s"), [*TURN, *TURN])
    await journal.append_messages(session("s", "acme"), TURN)
    new, gone = Message(Role.USER, "nöw", said_as="developer"), Message(Role.ASSISTANT, removed=True)
    replaced = await journal.replace_messages(session("s"), {0: new, 3: gone})
    assert (replaced.message_count, replaced.messages) == (4, ())
    assert (await journal.get_session(session("s"))).messages == (new, TURN[1], TURN[0], gone)
    assert await journal.history(session("s")) == (0, (new, TURN[1], TURN[0], gone))
    assert (await journal.get_session(session("s", "acme"))).messages == TURN
    assert (await journal.append_messages(session("s"), TURN[:1])).message_count == 5


async def test_no_message_is_replaced_unless_the_conversation_has_all_and_no_turn_runs(journal):
    await journal.append_messages(session("s"), TURN)
    new = Message(Role.USER, "new")
    for position in (2, -1):
        with pytest.raises(InvalidRequest, match=rf"'s' has no message at position {position}"):
            await journal.replace_messages(session("s"), {0: new, position: new})
    with pytest.raises(InvalidRequest, match="'none' has no message at position 0"):
        await journal.replace_messages(session("none"), {0: new})
    await admit(journal, session_id="s", takes_turn=True)
    with pytest.raises(Aborted, match="another turn"):
        await journal.replace_messages(session("s"), {0: new})
    assert (await journal.get_session(session("s"))).messages == TURN
    with pytest.raises(NotFound):
        await journal.get_session(session("none"))


async def test_a_summary_of_messages_that_were_replaced_is_cleared(journal):
    await journal.append_messages(session("s"), [*TURN, *TURN])
    await journal.put_summary(session("s"), Summary("said", 2))
    await journal.replace_messages(session("s"), {2: Message(Role.USER, removed=True)})
    assert await journal.get_summary(session("s")) == Summary("said", 2)
    await journal.replace_messages(session("s"), {1: Message(Role.ASSISTANT, removed=True)})
    assert await journal.get_summary(session("s")) == Summary("", 2)
