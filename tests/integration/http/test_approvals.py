"""Tool calls that wait for an approval, over HTTP."""

import asyncio

import pytest

from tests.integration.orchestrator.test_approvals import asking

ASKING = {
    "request_id": "r",
    "mode": "MODE_CHAT",
    "messages": [{"role": "ROLE_USER", "content": "What time is it?"}],
    "tool_rules": [{"tool": "clock", "action": "TOOL_ACTION_ASK"}],
}
CALL = "/v1/approvals/r/c1"


async def waiting(server, **query):
    """Wait until a call waits, and return the page that has it."""
    for _ in range(500):
        page = (await server.http.get("/v1/approvals", params=query)).json()
        if page["approvals"]:
            return page
        await asyncio.sleep(0.01)
    raise AssertionError("no call waits")


@pytest.mark.parametrize(
    ("decision", "sent", "called"),
    [
        ("APPROVAL_DECISION_APPROVED", {}, ['{"zone": "UTC"}']),
        ("APPROVAL_DECISION_APPROVED", {"arguments_json": '{"zone":"CET"}'}, ['{"zone":"CET"}']),
        ("APPROVAL_DECISION_REJECTED", {"reason": "not now"}, []),
    ],
)
async def test_a_call_waits_until_it_is_decided(served, decision, sent, called):
    services = asking()
    async with served(services) as server:
        running = asyncio.create_task(server.http.post("/v1/executions", json=ASKING))
        page = await waiting(server, request_id="r", page_size=1)
        one = (await server.http.get(CALL)).json()
        decided = await server.http.post(f"{CALL}/decision", json={"decision": decision, **sent})
        again = await server.http.post(f"{CALL}/decision", json={"decision": "APPROVAL_DECISION_APPROVED"})
        answered = (await running).json()
        gone = await server.http.get(CALL)
        rest = (await server.http.get("/v1/approvals")).json()
    assert page == {"approvals": [one], "next_page_token": ""}
    assert (one["request_id"], one["tool_call_id"], one["tool_name"]) == ("r", "c1", "clock")
    assert decided.json()["resolution"]["decision"] == decision
    assert again.status_code == (409 if sent else 200)
    assert answered["content"] == "done"
    assert [call.arguments_json for call in services.tools.calls] == called
    assert (gone.status_code, rest) == (404, {"approvals": [], "next_page_token": ""})


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"decision": "APPROVAL_DECISION_UNSPECIFIED"}, "decision"),
        ({"decision": "APPROVAL_DECISION_APPROVED", "why": "so"}, "why"),
        ({"decision": "APPROVAL_DECISION_APPROVED", "arguments_json": "5"}, "arguments_json"),
        ({"decision": "APPROVAL_DECISION_REJECTED", "reason": "x" * 501}, "reason"),
        ({"decision": "APPROVAL_DECISION_APPROVED", "tool_call_id": "c2"}, "tool_call_id"),
        ({}, "decision"),
    ],
)
async def test_a_decision_that_is_none_is_refused(served, body, words):
    async with served() as server:
        refused = await server.http.post(f"{CALL}/decision", json=body)
    assert (refused.status_code, words in refused.json()["error"]["message"]) == (400, True)


async def test_arguments_that_break_the_schema_are_refused_and_may_be_corrected(served):
    services = asking()
    async with served(services) as server:
        running = asyncio.create_task(server.http.post("/v1/executions", json=ASKING))
        await waiting(server, request_id="r")
        approving = {"decision": "APPROVAL_DECISION_APPROVED"}
        refused = await server.http.post(f"{CALL}/decision", json={**approving, "arguments_json": '{"zone":5}'})
        decided = await server.http.post(f"{CALL}/decision", json={**approving, "arguments_json": '{"zone":"CET"}'})
        assert (await running).json()["content"] == "done"
    assert (refused.status_code, decided.status_code) == (400, 200)
    assert "'zone'" in refused.json()["error"]["message"]
    assert [call.arguments_json for call in services.tools.calls] == ['{"zone":"CET"}']


async def test_a_call_that_does_not_wait_is_not_found(served):
    async with served() as server:
        assert (await server.http.get(CALL)).status_code == 404
        decided = await server.http.post(f"{CALL}/decision", json={"decision": "APPROVAL_DECISION_APPROVED"})
    assert decided.status_code == 404


@pytest.mark.parametrize("query", [{"page_size": 501}, {"page_size": "x"}, {"page_token": "x"}, {"request_id": "?"}])
async def test_a_page_that_there_is_not_is_refused(served, query):
    async with served() as server:
        assert (await server.http.get("/v1/approvals", params=query)).status_code == 400
