"""What every store of approvals does, in each database."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from pagantic_common.domain.errors import InvalidRequest, NotFound, PreconditionFailed
from services.orchestrator.core.model.keys import ExecutionKey
from services.orchestrator.core.tools.approval import Approval, Decision, Resolution
from services.orchestrator.core.tools.taint import TaintedSpan
from tests.support.journal_records import admit, admitted, ended, record

pytestmark = pytest.mark.payloads

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
KEY = ExecutionKey("default", "r1")
SPANS = (TaintedSpan("to[0]", "read (c0)", "a@b.example"),)
ASKED = Approval("r1", "c1", "send", '{"to": ["a@b.example"]}', "why", AT, AT + timedelta(minutes=5), SPANS)
YES = Resolution(Decision.APPROVED, AT + timedelta(seconds=1), "ann", '{"to": []}', "fine")


async def begin(journal, *request_ids):
    for request_id in request_ids:
        await admit(journal, request_id)


async def open_ones(journal, **selection):
    page = await journal.list_approvals(**{"tenant": "default", "limit": 9, "after": "", "request_id": ""} | selection)
    return page.items


async def test_a_call_waits_until_the_first_decision(journal):
    await begin(journal, "r1")
    assert await journal.ask_approval(KEY, ASKED) is ASKED
    assert await journal.get_approval(KEY, "c1") == ASKED
    assert await open_ones(journal) == [ASKED]
    assert await journal.resolve_approval(KEY, "c1", YES) == ASKED.resolved(YES)
    no = Resolution(Decision.REJECTED, AT)
    assert await journal.resolve_approval(KEY, "c1", no) == ASKED.resolved(YES)
    assert await journal.get_approval(KEY, "c1") == ASKED.resolved(YES)
    assert await open_ones(journal) == []


async def test_a_decision_holds_for_the_same_call_alone(journal):
    await begin(journal, "r1")
    await journal.ask_approval(KEY, ASKED)
    await journal.resolve_approval(KEY, "c1", YES)
    later = replace(ASKED, requested_at=AT + timedelta(hours=1), expires_at=AT + timedelta(hours=2))
    assert await journal.ask_approval(KEY, later) == ASKED.resolved(YES)
    other = replace(later, arguments_json="{}")
    assert await journal.ask_approval(KEY, other) is other
    assert await open_ones(journal) == [other]


async def test_what_is_unknown_or_of_another_tenant_is_not_found(journal):
    await begin(journal, "r1")
    await journal.ask_approval(KEY, ASKED)
    for key, call in ((KEY, "c2"), (ExecutionKey("default", "r2"), "c1"), (ExecutionKey("other", "r1"), "c1")):
        with pytest.raises(NotFound):
            await journal.get_approval(key, call)
        with pytest.raises(NotFound):
            await journal.resolve_approval(key, call, YES)
    assert await open_ones(journal, tenant="other") == []


async def test_those_that_wait_are_listed_oldest_first_in_pages(journal):
    await begin(journal, "r1", "r2")
    asked = [
        replace(
            ASKED,
            request_id=f"r{number % 2 + 1}",
            tool_call_id=f"c{number}",
            requested_at=AT + timedelta(0, number // 3),
        )
        for number in range(7)
    ]
    for one in reversed(asked):
        await journal.ask_approval(ExecutionKey("default", one.request_id), one)
    asked.sort(key=lambda one: (one.requested_at, one.request_id, one.tool_call_id))
    found, token = [], ""
    while True:
        page = await journal.list_approvals(tenant="default", limit=2, after=token, request_id="")
        found += page.items
        if not (token := page.next_token):
            break
    assert found == asked
    assert await open_ones(journal, request_id="r2") == [one for one in asked if one.request_id == "r2"]
    for wrong in ("x", '["nan","r","c"]', '["0x1p+0","r"]'):
        with pytest.raises(InvalidRequest):
            await open_ones(journal, after=wrong)


async def test_an_execution_that_ended_waits_for_nothing(journal):
    await begin(journal, "r1")
    await journal.ask_approval(KEY, ASKED)
    await journal.write(ended(record("r1")))
    assert await open_ones(journal) == []
    with pytest.raises(PreconditionFailed, match="ended"):
        await journal.resolve_approval(KEY, "c1", YES)


async def test_an_execution_that_runs_again_begins_without_approvals(journal):
    await begin(journal, "r1")
    await journal.ask_approval(KEY, ASKED)
    await journal.write(ended(record("r1")))
    before = await journal.get(KEY)
    assert await journal.admit_again(record("r1"), admitted("r1"), before) is not None
    with pytest.raises(NotFound):
        await journal.get_approval(KEY, "c1")
