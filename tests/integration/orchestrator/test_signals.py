"""Plans that wait for signals and times, over a real socket and a real journal."""

import asyncio
import json
from datetime import UTC, datetime, timedelta

import pytest

from pagantic.common.v1 import error_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic.orchestrator.v1 import plan_pb2, wait_pb2
from pagantic_common.domain.errors import (
    Conflict,
    ErrorCode,
    InvalidRequest,
    NotFound,
    Overloaded,
    PermissionDenied,
    PreconditionFailed,
)
from pagantic_common.domain.messages import ToolSafety
from pagantic_common.rpc.call import call_unary
from services.orchestrator.app.running import execution
from tests.integration.orchestrator.test_approvals import ASK, REJECTED, resolve, waiting
from tests.integration.orchestrator.test_background import begin, follow
from tests.integration.orchestrator.test_parking import LOOP, SOON_S, actions, get, parked
from tests.integration.orchestrator.test_plans import plan, step
from tests.support.guarded_app import KEY, guard, guarded_orchestrator, words
from tests.support.orchestrator_app import ended, execute, leave, orchestrator, stored, timeline
from tests.support.scripted_services import ScriptedTools, scripted_services

PAID = step("paid", "wait", parameters={"signal": "paid"})


@pytest.fixture(autouse=True)
def _parks_soon(monkeypatch):
    monkeypatch.setattr(execution, "PARK_AFTER_S", SOON_S)


async def signal(stub, payload=None, name="paid", request_id="p", **fields):
    request = pb.SignalExecutionRequest(request_id=request_id, name=name, payload_json=json.dumps(payload), **fields)
    return (await call_unary("orchestrator", stub.SignalExecution, request)).signal_id


async def waits(stub, count=1, **selection):
    """Return the open waits once there are so many."""
    for _ in range(500):
        reply = await call_unary("orchestrator", stub.ListWaits, pb.ListWaitsRequest(**selection))
        if len(reply.waits) == count:
            return list(reply.waits)
        await asyncio.sleep(0.01)
    raise AssertionError(f"{len(reply.waits)} waits are open, not {count}")


def outputs(response):
    return {result.name: json.loads(result.output.raw_json) for result in response.step_results}


@pytest.mark.parametrize("background", [False, True])
async def test_a_step_takes_the_signal_of_its_name(tmp_path, background):
    async with orchestrator(tmp_path) as stub:
        running = asyncio.create_task(execute(stub, plan(PAID, background=background)))
        (wait,) = await waits(stub)
        assert (wait.wait_id, wait.kind, wait.name) == ("plan/paid", wait_pb2.WAIT_KIND_SIGNAL, "paid")
        assert list((await get(stub, "p")).state.waiting_for) == [wait]
        assert await signal(stub, {"amount": 3}, signal_id="s1") == "s1"
        response = await running
        events = await timeline(stub, "p")
        assert await waits(stub, 0) == []
        assert not (await get(stub, "p")).state.waiting_for
    assert outputs(response) == {"paid": {"amount": 3}}
    assert json.loads(response.content) == {"amount": 3}
    (began,) = [event.wait_began.wait for event in events if event.action == "wait.began"]
    (end,) = [event.wait_ended.wait for event in events if event.action == "wait.ended"]
    assert (began.wait_id, end.wait_id, end.resolution.signal_id) == ("plan/paid", "plan/paid", "s1")
    assert not end.resolution.payload_json, "the timeline does not repeat the payload"


async def test_a_signal_that_comes_before_its_wait_is_kept(tmp_path):
    first = step("ask", "tool", parameters={"tool": "clock", "arguments": {}})
    async with orchestrator(tmp_path, scripted_services(tools=ScriptedTools())) as stub:
        running = asyncio.create_task(
            execute(stub, plan(first, PAID, step("again", "wait", parameters={"signal": "paid"}), tool_rules=[ASK]))
        )
        (asked,) = await waiting(stub)
        for number in (1, 2, 3):
            await signal(stub, number)
        await resolve(stub, call=asked.tool_call_id, request_id="p")
        response = await running
    results = {result.name: result.output.raw_json for result in response.step_results}
    assert (results["paid"], results["again"]) == ("1", "2")


async def test_a_parked_plan_is_woken_by_its_signal_alone_and_after_a_restart(tmp_path):
    async with orchestrator(tmp_path) as stub:
        await begin(stub, plan(PAID, background=True))
        found = await parked(stub, "p")
        (wait,) = found.state.waiting_for
        assert found.wakes_at == wait.expires_at
        assert wait.expires_at.seconds - wait.began_at.seconds == 7 * 86_400
        await signal(stub, name="other")
        assert stub.executions.registry.count == 0
        assert (await get(stub, "p")).wakes_at == found.wakes_at
    async with orchestrator(tmp_path, presence=LOOP) as stub:
        following = asyncio.create_task(follow(stub, "p"))
        await signal(stub, "at last")
        response = (await ended(stub, "p")).response
        assert response.content == '"at last"'
        sequences = [event.sequence for event in await following]
        assert sequences == list(range(1, len(sequences) + 1))
        kept = [action for action in actions(await timeline(stub, "p")) if action.startswith(("wait", "execution"))]
        assert kept == ["wait.began", "execution.parked", "execution.woken", "wait.ended", "execution.end"]


@pytest.mark.parametrize("background", [False, True])
async def test_a_wait_without_a_signal_times_out(tmp_path, background):
    paid = step("paid", "wait", parameters={"signal": "paid", "timeout_s": 0.4, "reason": "the invoice"})
    async with orchestrator(tmp_path, presence=LOOP) as stub:
        response = await execute(stub, plan(paid, background=background))
        events = await timeline(stub, "p")
    assert outputs(response) == {"paid": {"timed_out": True}}
    (end,) = [event.wait_ended.wait for event in events if event.action == "wait.ended"]
    assert (end.resolution.expired, end.reason) == (True, "the invoice")
    assert ("execution.woken" in actions(events)) == background


async def test_a_timer_ends_at_its_time(tmp_path):
    until = datetime.now(UTC) + timedelta(seconds=2)
    short = step("short", "wait", parameters={"duration_s": 0.05}, depends_on=[])
    exact = step("exact", "wait", parameters={"until": until.isoformat()}, depends_on=["short"])
    past = step("past", "wait", parameters={"until": "2020-01-01T00:00:00Z"}, depends_on=["short"])
    async with orchestrator(tmp_path, presence=LOOP) as stub:
        await begin(stub, plan(short, exact, past, background=True))
        assert [wait.kind for wait in await waits(stub)] == [wait_pb2.WAIT_KIND_TIMER]
        await parked(stub, "p")
        response = (await ended(stub, "p")).response
    ends = outputs(response)
    assert ends["exact"] == {"at": until.isoformat()}
    assert datetime.fromisoformat(ends["past"]["at"]) <= until
    assert datetime.now(UTC) >= until


async def test_a_payload_is_checked_against_the_schema_when_it_is_sent_or_else_when_it_is_taken(tmp_path):
    schema = {"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]}
    paid = step("paid", "wait", parameters={"signal": "paid", "payload_schema": schema})
    call = step("call", "tool", parameters={"tool": "clock", "arguments": {}})
    async with orchestrator(tmp_path, scripted_services(tools=ScriptedTools())) as stub:
        running = asyncio.create_task(execute(stub, plan(call, paid, tool_rules=[ASK])))
        (asked,) = await waiting(stub)
        await signal(stub, {"amount": "much"}, signal_id="wrong")
        await resolve(stub, call=asked.tool_call_id, request_id="p")
        (wait,) = await waits(stub)
        assert json.loads(wait.schema_json) == schema
        with pytest.raises(InvalidRequest, match="schema of wait 'plan/paid': amount: expected type integer"):
            await signal(stub, {"amount": "much"})
        with pytest.raises(InvalidRequest, match="schema of wait 'plan/paid'"):
            await signal(stub)
        assert len(await waits(stub)) == 1
        await signal(stub, {"amount": 3})
        response = await running
        events = await timeline(stub, "p")
    assert json.loads(response.content) == {"amount": 3}
    (dropped,) = [event.signal_dropped for event in events if event.action == "signal.dropped"]
    assert (dropped.name, dropped.signal_id) == ("paid", "wrong")
    assert "amount" in dropped.reason


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"name": ""}, "name is ''"),
        ({"name": "a b"}, "letters, digits"),
        ({"payload_json": "{"}, "payload_json is not JSON"),
        ({"payload_json": json.dumps("x" * 65_536)}, "65538 bytes: it may have 65536"),
        ({"signal_id": "a\nb"}, "signal_id"),
        ({"request_id": ""}, "request_id"),
    ],
)
async def test_a_malformed_signal_is_refused(tmp_path, fields, words):
    async with orchestrator(tmp_path) as stub:
        await begin(stub, plan(PAID, background=True))
        request = pb.SignalExecutionRequest(**{"request_id": "p", "name": "paid", **fields})
        with pytest.raises(InvalidRequest, match=words):
            await call_unary("orchestrator", stub.SignalExecution, request)


async def test_a_signal_is_for_a_known_execution_that_runs_and_its_id_is_for_one_signal(tmp_path):
    async with orchestrator(tmp_path) as stub:
        with pytest.raises(NotFound):
            await signal(stub)
        running = asyncio.create_task(execute(stub, plan(PAID)))
        await waits(stub)
        for _ in range(64):
            await signal(stub, name="other")
        with pytest.raises(Overloaded, match="keeps at most 64"):
            await signal(stub, name="other")
        with pytest.raises(Overloaded):
            await signal(stub, 1, signal_id="s1")
        await call_unary("orchestrator", stub.CancelExecution, pb.CancelExecutionRequest(request_id="p"))
        assert (await running).error.code == error_pb2.ERROR_CODE_CANCELLED_SIGNAL
        with pytest.raises(PreconditionFailed, match="has ended"):
            await signal(stub)
        again = plan(PAID)
        again.request_id = "q"
        running = asyncio.create_task(execute(stub, again))
        await waits(stub)
        await signal(stub, 1, request_id="q", signal_id="s1")
        assert (await running).content == "1"
        await signal(stub, 1, request_id="q", signal_id="s1")
        with pytest.raises(Conflict):
            await signal(stub, 2, request_id="q", signal_id="s1")


async def test_two_waits_for_one_name_take_the_signals_in_the_order_of_their_paths(tmp_path):
    names = ("b", "a", "c")
    steps = [step(name, "wait", depends_on=["none"], parameters={"signal": "go"}) for name in names]
    async with orchestrator(tmp_path) as stub:
        running = asyncio.create_task(execute(stub, plan(step("none", "validate"), *steps)))
        await waits(stub, 3)
        for number in range(3):
            await signal(stub, number, name="go")
            await waits(stub, 2 - number)
        response = await running
    ends = {result.name: result.output.raw_json for result in response.step_results}
    assert (ends["a"], ends["b"], ends["c"]) == ("0", "1", "2")


async def test_text_of_a_payload_does_not_reach_a_tool_with_effects_unasked(tmp_path):
    tools = ScriptedTools(safety=ToolSafety.EXTERNAL)
    send = step("send", "tool", parameters={"tool": "clock"})
    async with orchestrator(tmp_path, scripted_services(tools=tools)) as stub:
        running = asyncio.create_task(execute(stub, plan(PAID, send)))
        await waits(stub)
        await signal(stub, {"to": "eve@example.com"})
        (asked,) = await waiting(stub)
        assert [(span.argument, span.source) for span in asked.spans] == [("to", "paid")]
        await resolve(stub, REJECTED, call=asked.tool_call_id, request_id="p")
        assert (await running).error.code == error_pb2.ERROR_CODE_TOOL_DENIED
    assert tools.calls == []


async def test_a_repeated_name_does_not_hide_text_of_a_payload(tmp_path):
    async with guarded_orchestrator(tmp_path, words("input")) as stub:
        running = asyncio.create_task(execute(stub, plan(PAID)))
        await waits(stub)
        request = pb.SignalExecutionRequest(request_id="p", name="paid")
        request.payload_json = '{"note": "a heist", "note": "a picnic"}'
        await call_unary("orchestrator", stub.SignalExecution, request)
        assert json.loads((await running).content) == {"note": "a picnic"}


async def test_a_wait_whose_turn_it_is_not_drops_no_signal(tmp_path):
    parameters = {"a": {"signal": "go"}, "b": {"signal": "go", "payload_schema": {"type": "integer"}}}
    steps = [step(name, "wait", depends_on=["none"], parameters=given) for name, given in parameters.items()]
    async with orchestrator(tmp_path) as stub:
        running = asyncio.create_task(execute(stub, plan(step("none", "validate"), *steps)))
        await waits(stub, 2)
        await signal(stub, "words", name="go", signal_id="s1")
        await waits(stub, 1)
        await signal(stub, "words", name="go", signal_id="s1")
        with pytest.raises(InvalidRequest):
            await signal(stub, "more words", name="go")
        await signal(stub, 3, name="go")
        response = await running
        assert "signal.dropped" not in actions(await timeline(stub, "p"))
    assert {result.name: result.output.raw_json for result in response.step_results[1:]} == {"a": '"words"', "b": "3"}


async def test_guards_of_inputs_read_payloads(tmp_path):
    rules = [words("input"), guard("secrets", "input", action="redact")]
    async with guarded_orchestrator(tmp_path, *rules) as stub:
        running = asyncio.create_task(execute(stub, plan(PAID)))
        await waits(stub)
        with pytest.raises(PermissionDenied, match="guard 'topics' blocks") as blocked:
            await signal(stub, {"note": "a heist"})
        assert blocked.value.code is ErrorCode.GUARD_BLOCKED
        assert len(await waits(stub)) == 1
        await signal(stub, {"note": KEY})
        assert outputs(await running) == {"paid": {"note": "[redacted: AWS_ACCESS_KEY]"}}


async def test_a_wait_outlives_the_orchestrator_and_keeps_its_time(tmp_path):
    left = tmp_path / "left"
    async with orchestrator(tmp_path) as stub:
        running = asyncio.create_task(execute(stub, plan(PAID)))
        (begun,) = await waits(stub)
        await stored(stub, "p", lambda events: "wait.began" in actions(events))
        leave(tmp_path, left)
        await signal(stub)
        await running
    async with orchestrator(left) as stub:
        assert await waits(stub) == [begun]
        await signal(stub, "before anybody resumes it")
        assert (await execute(stub, plan(PAID))).content == '"before anybody resumes it"'
        assert actions(await timeline(stub, "p")).count("wait.began") == 1


@pytest.mark.parametrize("number", range(5))
async def test_a_signal_at_the_moment_of_parking_is_not_lost(tmp_path, monkeypatch, number):
    monkeypatch.setattr(execution, "PARK_AFTER_S", 0.02)
    async with orchestrator(tmp_path, presence=LOOP) as stub:
        await begin(stub, plan(PAID, background=True))
        await waits(stub)
        await asyncio.sleep(0.005 * number)
        await signal(stub, number)
        assert (await ended(stub, "p")).response.content == str(number)


async def test_another_orchestrator_takes_the_signal(tmp_path, postgres_url):
    async with (
        orchestrator(tmp_path, url=postgres_url, owner="a", presence=LOOP) as one,
        orchestrator(tmp_path, url=postgres_url, owner="b", presence=LOOP) as other,
    ):
        running = asyncio.create_task(execute(one, plan(PAID)))
        await waits(one)
        await signal(other, "from afar")
        assert (await running).content == '"from afar"'
        request = plan(PAID, background=True)
        request.request_id = "q"
        await begin(one, request)
        await parked(one, "q")
        await signal(other, "again", request_id="q")
        assert (await ended(one, "q")).response.content == '"again"'


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({}, "needs exactly one of the parameters 'signal', 'duration_s', 'until'"),
        ({"signal": "a", "duration_s": 1}, "needs exactly one"),
        ({"duration_s": 1, "timeout_s": 1}, "only a wait for a 'signal' takes"),
        ({"signal": "a b"}, "'signal' that is not"),
        ({"duration_s": -1}, "out of range"),
        ({"duration_s": 367 * 86_400}, "out of range"),
        ({"until": "tomorrow"}, "not a time with its offset"),
        ({"until": "2027-01-31T09:00:00"}, "not a time with its offset"),
        ({"signal": "a", "payload_schema": {"type": 3}}, "a 'payload_schema' that"),
        ({"signal": "a", "question": "?"}, "does not take"),
    ],
)
async def test_a_wait_that_cannot_be_is_rejected_before_any_step_runs(tmp_path, parameters, words):
    async with orchestrator(tmp_path) as stub:
        response = await execute(stub, plan(step("w", "wait", parameters=parameters)))
    assert response.error.code == error_pb2.ERROR_CODE_ORCHESTRATION_PLAN_REJECTED
    assert words in response.error.message


async def test_a_wait_has_no_timeout_of_a_step_and_no_time_after_a_year(tmp_path):
    timed = step("w", "wait", parameters={"signal": "a"})
    timed.timeout.FromSeconds(3)
    late = step("w", "wait", parameters={"until": "2999-01-01T00:00:00Z"})
    async with orchestrator(tmp_path) as stub:
        assert "set its parameter 'timeout_s'" in (await execute(stub, plan(timed))).error.message
        request = plan(late)
        request.request_id = "q"
        assert "at most 366 days" in (await execute(stub, request)).error.message
        policy = plan_pb2.PlanPolicy()
        policy.timeout_per_step.FromMilliseconds(50)
        request = plan(step("w", "wait", parameters={"duration_s": 0.3}), policy=policy)
        request.request_id = "s"
        assert not (await execute(stub, request)).HasField("error")
