"""What every store of waits and signals does, in each database."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from pagantic_common.domain.errors import Conflict, InvalidRequest, NotFound, Overloaded, PreconditionFailed
from services.orchestrator.core.execution.wait import (
    MAX_KEPT_SIGNALS,
    Decision,
    Resolution,
    Signal,
    Wait,
    WaitKind,
    digest_of,
)
from services.orchestrator.core.model.keys import ExecutionKey
from services.orchestrator.core.tools.taint import TaintedSpan
from tests.support.journal_records import admit, admitted, ended, record

pytestmark = pytest.mark.payloads

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
LATER = AT + timedelta(minutes=5)
KEY = ExecutionKey("default", "r1")
SPANS = (TaintedSpan("to[0]", "read (c0)", "a@b.example"),)
ASKED = Wait("r1", "c1", WaitKind.APPROVAL, AT, LATER, "send", "why", '{"to": ["a@b.example"]}', spans=SPANS)
YES = Resolution(Decision.APPROVED, AT + timedelta(seconds=1), "ann", '{"to": []}', "fine")
PAID = Wait("r1", "plan/b", WaitKind.SIGNAL, AT, LATER, "paid", "the invoice", schema_json='{"type": "object"}')
TIMER = Wait("r1", "plan/t", WaitKind.TIMER, AT, LATER)


def sent(signal_id, name, payload_json, subject=""):
    return Signal(signal_id, name, payload_json, digest_of(name, payload_json), subject)


def came(signal, **fields):
    return Resolution(Decision.SIGNALLED, AT, signal.subject, signal.payload_json, signal_id=signal.id, **fields)


async def begin(journal, *request_ids):
    for request_id in request_ids:
        await admit(journal, request_id)


async def open_waits(journal, **selection):
    selection = {"tenant": "default", "limit": 9, "after": "", "request_id": "", "kinds": set(WaitKind)} | selection
    return (await journal.list_waits(**selection)).items


async def test_a_call_waits_until_the_first_decision(journal):
    await begin(journal, "r1")
    assert await journal.begin_wait(KEY, ASKED) is ASKED
    assert await journal.get_wait(KEY, "c1") == ASKED
    assert await open_waits(journal) == [ASKED]
    assert await journal.resolve_wait(KEY, "c1", YES) == ASKED.resolved(YES)
    no = Resolution(Decision.REJECTED, AT)
    assert await journal.resolve_wait(KEY, "c1", no) == ASKED.resolved(YES)
    assert await journal.get_wait(KEY, "c1") == ASKED.resolved(YES)
    assert await open_waits(journal) == []


async def test_a_decision_holds_for_the_same_call_alone(journal):
    await begin(journal, "r1")
    await journal.begin_wait(KEY, ASKED)
    await journal.resolve_wait(KEY, "c1", YES)
    later = replace(ASKED, began_at=AT + timedelta(hours=1), expires_at=AT + timedelta(hours=2))
    assert await journal.begin_wait(KEY, later) == ASKED.resolved(YES)
    other = replace(later, arguments_json="{}")
    assert await journal.begin_wait(KEY, other) is other
    assert await open_waits(journal) == [other]


async def test_an_unknown_wait_and_a_wait_of_another_tenant_are_not_found(journal):
    await begin(journal, "r1")
    await journal.begin_wait(KEY, ASKED)
    for key, call in ((KEY, "c2"), (ExecutionKey("default", "r2"), "c1"), (ExecutionKey("other", "r1"), "c1")):
        with pytest.raises(NotFound):
            await journal.get_wait(key, call)
        with pytest.raises(NotFound):
            await journal.resolve_wait(key, call, YES)
    assert await open_waits(journal, tenant="other") == []


async def test_open_waits_are_listed_oldest_first_in_pages(journal):
    await begin(journal, "r1", "r2")
    asked = [
        replace(ASKED, request_id=f"r{number % 2 + 1}", id=f"c{number}", began_at=AT + timedelta(0, number // 3))
        for number in range(7)
    ]
    for wait in reversed(asked):
        await journal.begin_wait(ExecutionKey("default", wait.request_id), wait)
    asked.sort(key=lambda wait: (wait.began_at, wait.request_id, wait.id))
    listed, token = [], ""
    while True:
        page = await journal.list_waits(
            tenant="default", limit=2, after=token, request_id="", kinds={WaitKind.APPROVAL}
        )
        listed += page.items
        if not (token := page.next_token):
            break
    assert listed == asked
    assert await open_waits(journal, request_id="r2") == [wait for wait in asked if wait.request_id == "r2"]
    for wrong in ("x", '["nan","r","c"]', '["0x1p+0","r"]'):
        with pytest.raises(InvalidRequest):
            await open_waits(journal, after=wrong)


async def test_waits_of_each_kind_are_stored_and_selected(journal):
    await begin(journal, "r1")
    for wait in (ASKED, PAID, TIMER):
        assert await journal.begin_wait(KEY, wait) is wait
        assert await journal.begin_wait(KEY, replace(wait, expires_at=LATER + timedelta(days=1))) == wait
    assert await open_waits(journal) == [ASKED, PAID, TIMER]
    assert await open_waits(journal, kinds={WaitKind.SIGNAL, WaitKind.TIMER}) == [PAID, TIMER]
    expired = Resolution(Decision.EXPIRED, LATER)
    assert await journal.resolve_wait(KEY, "plan/t", expired) == TIMER.resolved(expired)
    assert await journal.get_wait(KEY, "plan/t") == TIMER.resolved(expired)
    assert await open_waits(journal) == [ASKED, PAID]


async def test_a_wait_belongs_to_an_execution_and_a_question_to_its_words(journal):
    with pytest.raises(NotFound):
        await journal.begin_wait(KEY, PAID)
    await begin(journal, "r1")
    asked = Wait("r1", "call_0", WaitKind.QUESTION, AT, LATER, "call_0", "When?")
    await journal.begin_wait(KEY, asked)
    await journal.resolve_wait(KEY, "call_0", Resolution(Decision.SIGNALLED, AT, payload_json='"at eight"'))
    other = replace(asked, reason="Where?")
    assert await journal.begin_wait(KEY, other) is other, "an engine may use an id again"


@pytest.mark.sql_only
async def test_an_earlier_version_lists_approvals_alone(journal):
    await begin(journal, "r1")
    for wait in (ASKED, PAID, TIMER):
        await journal.begin_wait(KEY, wait)
    with journal._engine.connect() as db:
        query = text("SELECT tool_call_id FROM approvals WHERE is_open = 1")
        assert db.execute(query).scalars().all() == ["c1"]


async def test_an_execution_that_ended_waits_for_nothing(journal):
    await begin(journal, "r1")
    await journal.begin_wait(KEY, ASKED)
    await journal.add_signal(KEY, sent("1", "paid", "1"))
    await journal.write(ended(record("r1")))
    assert await open_waits(journal) == []
    with pytest.raises(PreconditionFailed, match="ended"):
        await journal.resolve_wait(KEY, "c1", YES)
    with pytest.raises(PreconditionFailed, match="ended"):
        await journal.add_signal(KEY, sent("2", "paid", "1"))
    await journal.add_signal(KEY, sent("1", "paid", "1"))


async def test_an_execution_that_runs_again_begins_without_waits_and_signals(journal):
    await begin(journal, "r1")
    await journal.begin_wait(KEY, ASKED)
    await journal.add_signal(KEY, sent("1", "paid", "1"))
    await journal.write(ended(record("r1")))
    before = await journal.get(KEY)
    assert await journal.admit_again(record("r1"), admitted("r1"), before) is not None
    with pytest.raises(NotFound):
        await journal.get_wait(KEY, "c1")
    assert await journal.next_signal(KEY, "paid") is None


async def test_signals_of_a_name_are_taken_in_their_order(journal):
    await begin(journal, "r1")
    first, second = sent("z", "paid", '{"n": 1}', "ann"), sent("a", "paid", '{"n": 2}')
    other = sent("m", "shipped", "true")
    for signal in (first, other, second):
        await journal.add_signal(KEY, signal)
    assert await journal.next_signal(KEY, "none") is None
    assert await journal.next_signal(KEY, "paid") == first
    await journal.begin_wait(KEY, PAID)
    assert await journal.take_signal(KEY, "plan/b", came(first)) == PAID.resolved(came(first))
    assert await journal.next_signal(KEY, "paid") == second
    await journal.begin_wait(KEY, replace(PAID, id="plan/c"))
    assert await journal.drop_signal(KEY, "plan/c", "a")
    assert not await journal.drop_signal(KEY, "plan/c", "a")
    assert await journal.next_signal(KEY, "paid") is None
    assert await journal.next_signal(KEY, "shipped") == other


async def test_a_signal_is_taken_once_and_by_the_first_open_wait(journal):
    await begin(journal, "r1")
    earlier, signal = replace(PAID, id="plan/a"), sent("1", "paid", "1")
    for wait in (PAID, earlier):
        await journal.begin_wait(KEY, wait)
    await journal.add_signal(KEY, signal)
    assert await journal.first_wait(KEY, "paid") == earlier
    assert await journal.take_signal(KEY, "plan/b", came(signal)) == PAID, "another wait comes first"
    assert not await journal.drop_signal(KEY, "plan/b", "1"), "another wait comes first"
    assert (await journal.take_signal(KEY, "plan/a", came(signal))).resolution == came(signal)
    assert await journal.take_signal(KEY, "plan/b", came(signal)) == PAID, "it was taken"
    assert await journal.first_wait(KEY, "paid") == PAID
    assert await journal.first_wait(KEY, "other") is None


async def test_a_signal_may_be_sent_again_under_its_id(journal):
    await begin(journal, "r1")
    signal = sent("1", "paid", '"secret"', "ann")
    await journal.begin_wait(KEY, PAID)
    for _ in range(2):
        await journal.add_signal(KEY, signal)
    for changed in (sent("1", "paid", "2"), sent("1", "other", '"secret"')):
        with pytest.raises(Conflict, match="another name or payload"):
            await journal.add_signal(KEY, changed)
    await journal.take_signal(KEY, "plan/b", came(signal))
    await journal.add_signal(KEY, replace(signal, subject="bob"))
    assert await journal.next_signal(KEY, "paid") is None
    with pytest.raises(Conflict):
        await journal.add_signal(KEY, sent("1", "paid", "2"))
    assert await journal.signal_digest(KEY, "1") == signal.digest
    assert await journal.signal_digest(KEY, "2") is None


async def test_kept_signals_have_a_bound_for_each_execution(journal):
    await begin(journal, "r1", "r2")
    for number in range(MAX_KEPT_SIGNALS):
        await journal.add_signal(KEY, sent(str(number), "paid", "1"))
    with pytest.raises(Overloaded, match="keeps at most 64"):
        await journal.add_signal(KEY, sent("more", "paid", "1"))
    await journal.add_signal(ExecutionKey("default", "r2"), sent("more", "paid", "1"))
    await journal.begin_wait(KEY, PAID)
    assert await journal.drop_signal(KEY, "plan/b", "0")
    await journal.add_signal(KEY, sent("more", "paid", "1"))


async def test_an_unknown_execution_takes_no_signal(journal):
    await begin(journal, "r1")
    for key in (ExecutionKey("default", "none"), ExecutionKey("other", "r1")):
        with pytest.raises(NotFound):
            await journal.add_signal(key, sent("1", "paid", "1"))
