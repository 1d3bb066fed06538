"""Executions in the background that only wait: parked, woken, and continued where they were."""

import asyncio
from contextlib import suppress

import pytest

from pagantic.common.v1 import error_pb2, message_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.domain.errors import ErrorCode, NotFound, PreconditionFailed, Unavailable
from pagantic_common.domain.messages import ToolCall
from pagantic_common.rpc.call import call_stream, call_unary
from services.orchestrator.app.running import execution
from tests.integration.orchestrator.test_approvals import APPROVED, ASK, CALL, REJECTED, asking, resolve, waiting
from tests.integration.orchestrator.test_background import begin, follow
from tests.integration.orchestrator.test_plans import plan, step
from tests.support.orchestrator_app import ended, execute, orchestrator, stored, system_request, timeline
from tests.support.scripted_services import ScriptedInference, ScriptedTools, answer, scripted_services

SOON_S = 0.05
FOLLOWED = pb.FollowExecutionRequest(request_id="r")
LOOP = {"resumes_plans": True, "beat_s": 0.02}


@pytest.fixture(autouse=True)
def _parks_soon(monkeypatch):
    monkeypatch.setattr(execution, "PARK_AFTER_S", SOON_S)


def asks(request_id="r", **fields):
    return system_request(request_id=request_id, tool_rules=[ASK], background=True, **fields)


async def get(stub, request_id="r"):
    reply = await call_unary("orchestrator", stub.GetExecution, pb.GetExecutionRequest(request_id=request_id))
    return reply.execution


async def parked(stub, request_id="r"):
    """Wait until an execution is parked and its place is free, and return it."""
    for _ in range(500):
        found = await get(stub, request_id)
        if found.HasField("wakes_at") and stub.executions.registry.count == 0:
            return found
        await asyncio.sleep(0.01)
    raise AssertionError("the execution was not parked")


def actions(events):
    return [event.action for event in events]


async def test_a_parked_execution_has_no_place_and_goes_on_after_the_decision(tmp_path):
    services = asking()
    async with orchestrator(tmp_path, services) as stub:
        await begin(stub, asks())
        found = await parked(stub)
        assert not found.interrupted
        assert found.state.current == execution_pb2.LIFECYCLE_STATE_EXECUTE
        (asked,) = await waiting(stub)
        assert found.wakes_at == asked.expires_at
        assert asked.expires_at.seconds - asked.requested_at.seconds == 7 * 86_400
        await resolve(stub)
        response = (await ended(stub, "r")).response
        events = await timeline(stub, "r")
    assert response.content == "done"
    assert (len(services.inference.commands), len(services.tools.calls)) == (2, 1)
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    told = [action for action in actions(events) if action.startswith(("approval", "execution", "tool"))]
    assert told == [
        "approval.requested", "execution.parked", "execution.woken", "approval.resolved", "tool.start", "tool.end",
        "execution.end",
    ]  # fmt: skip


async def test_callers_that_stay_get_the_rest_and_the_end(tmp_path):
    async with orchestrator(tmp_path, asking()) as stub:
        whole = asyncio.create_task(execute(stub, asks(), 30))
        await waiting(stub)
        stream = asyncio.create_task(events_of(call_stream("orchestrator", stub.ExecuteStream, asks(), 30)))
        following = asyncio.create_task(follow(stub))
        await parked(stub)
        late = asyncio.create_task(follow(stub))
        await asyncio.sleep(0.1)
        await resolve(stub)
        assert (await whole).content == "done"
        for task in (stream, following, late):
            kept = [event for event in await task if event.WhichOneof("event") != "content_delta"]
            assert [event.sequence for event in kept] == list(range(1, len(kept) + 1))
            assert kept[-1].completed.response.content == "done"


async def events_of(stream):
    return [event async for event in stream]


async def test_a_parked_execution_survives_a_restart(tmp_path):
    async with orchestrator(tmp_path, asking()) as stub:
        await begin(stub, asks())
        await parked(stub)
    services = scripted_services(ScriptedInference(answer("after the restart")), tools=ScriptedTools())
    async with orchestrator(tmp_path, services, presence=LOOP) as stub:
        await asyncio.sleep(0.2)
        assert (await get(stub)).HasField("wakes_at"), "only a decision or its time wakes it"
        await resolve(stub)
        assert (await ended(stub, "r")).response.content == "after the restart"
        assert [call.arguments_json for call in services.tools.calls] == [CALL.arguments_json]


async def test_a_rejected_call_is_not_made(tmp_path):
    services = asking()
    async with orchestrator(tmp_path, services) as stub:
        await begin(stub, asks())
        await parked(stub)
        await resolve(stub, REJECTED, reason="too dear")
        response = (await ended(stub, "r")).response
        assert (response.content, services.tools.calls) == ("done", [])
        assert "too dear" in services.inference.commands[1].messages[-1].content


async def test_a_wait_that_expires_wakes_the_execution(tmp_path):
    services = asking()
    async with orchestrator(tmp_path, services, presence=LOOP) as stub:
        stub.executions.waits._parked_wait_s = 0.4
        await begin(stub, asks())
        response = (await ended(stub, "r")).response
        assert [call.error_code for call in response.tool_calls_made] == [error_pb2.ERROR_CODE_TOOL_DENIED]
        assert "nobody approved the call in time" in services.inference.commands[1].messages[-1].content
        assert "execution.woken" in actions(await timeline(stub, "r"))


async def test_a_parked_execution_can_be_cancelled(tmp_path):
    services = asking()
    async with orchestrator(tmp_path, services) as stub:
        await begin(stub, asks())
        await parked(stub)
        reply = await call_unary("orchestrator", stub.CancelExecution, pb.CancelExecutionRequest(request_id="r"))
        assert reply.state == execution_pb2.LIFECYCLE_STATE_CANCELLED
        assert (await get(stub)).response.error.code == error_pb2.ERROR_CODE_CANCELLED_SIGNAL
        assert await waiting(stub, 0) == []
        assert (len(services.inference.commands), services.tools.calls) == (1, [])


async def test_the_time_of_an_execution_stands_still_while_it_is_parked(tmp_path):
    async with orchestrator(tmp_path, asking(), max_execution_s=1.5) as stub:
        await begin(stub, asks())
        await parked(stub)
        await asyncio.sleep(2)
        await resolve(stub)
        assert (await ended(stub, "r")).response.content == "done"


async def test_a_foreground_execution_and_a_step_with_a_timeout_are_not_parked(tmp_path):
    async with orchestrator(tmp_path, asking()) as stub:
        running = asyncio.create_task(execute(stub, system_request(request_id="r", tool_rules=[ASK])))
        (asked,) = await waiting(stub)
        await asyncio.sleep(5 * SOON_S)
        assert not (await get(stub)).HasField("wakes_at")
        assert asked.expires_at.seconds - asked.requested_at.seconds <= 30
        await resolve(stub)
        assert (await running).content == "done"
    timed = step("time", "tool", parameters={"tool": "clock", "arguments": {}})
    timed.timeout.FromSeconds(20)
    request = plan(timed, tool_rules=[ASK], background=True)
    async with orchestrator(tmp_path, asking()) as stub:
        await begin(stub, request)
        (asked,) = await waiting(stub)
        await asyncio.sleep(5 * SOON_S)
        assert not (await get(stub, "p")).HasField("wakes_at")
        await resolve(stub, call=asked.tool_call_id, request_id="p")
        assert (await ended(stub, "p")).response.error.code == 0


async def test_a_plan_is_parked_once_every_branch_waits(tmp_path):
    inference = ScriptedInference(None)
    steps = [
        step("first", "tool", depends_on=["none"], parameters={"tool": "clock", "arguments": {"n": 1}}),
        step("second", "tool", depends_on=["none"], parameters={"tool": "clock", "arguments": {"n": 2}}),
        step("none", "validate"),
        step("busy", depends_on=["none"], parameters={"prompt": "Think."}),
    ]
    request = plan(*steps, tool_rules=[ASK], background=True)
    async with orchestrator(tmp_path, scripted_services(inference)) as stub:
        await begin(stub, request)
        await waiting(stub, 2)
        await asyncio.sleep(5 * SOON_S)
        assert not (await get(stub, "p")).HasField("wakes_at"), "a step still works"
        await call_unary("orchestrator", stub.CancelExecution, pb.CancelExecutionRequest(request_id="p"))
    request.request_id = "q"
    services = scripted_services(ScriptedInference(answer("thought")), tools=ScriptedTools())
    async with orchestrator(tmp_path, services) as stub:
        await begin(stub, request)
        calls = await waiting(stub, 2)
        await parked(stub, "q")
        for asked in calls:  # the first decision wakes it, and it is parked again
            await resolve(stub, call=asked.tool_call_id, request_id="q")
            with suppress(AssertionError):
                await stored(stub, "q", lambda events: actions(events).count("tool.end") == 1)
        response = (await ended(stub, "q")).response
        assert {result.name for result in response.step_results} == {"first", "second", "none", "busy"}
        assert len(services.tools.calls) == 2
        assert len(services.inference.commands) == 1


async def test_a_hundred_wait_in_eight_places_and_none_is_refused(tmp_path):
    inference, tools = ScriptedInference(), ScriptedTools()
    count = 100
    inference.outputs = [answer("", calls=[ToolCall("c1", "clock", "{}")])] * count + [answer("done")]
    async with orchestrator(tmp_path, scripted_services(inference, tools=tools), presence=LOOP, max_running=8) as stub:
        for number in range(count):
            await begin(stub, asks(f"r{number}"))
            if number % 8 == 7:
                await parked(stub, f"r{number}")
        await parked(stub, f"r{count - 1}")
        most = 0

        async def decide(number):
            nonlocal most
            await resolve(stub, APPROVED, request_id=f"r{number}")
            most = max(most, stub.executions.registry.count)

        await asyncio.gather(*(decide(number) for number in range(count)))
        for number in range(count):
            assert (await ended(stub, f"r{number}")).response.content == "done"
        assert 0 < most <= 8
        assert len(tools.calls) == count


async def test_a_parked_turn_keeps_its_session(tmp_path):
    async with orchestrator(tmp_path, asking()) as stub:
        await begin(stub, asks(session_id="s"))
        await parked(stub)
        refused = await execute(stub, system_request("And?", request_id="other", session_id="s"), 30)
        assert refused.error.code == error_pb2.ERROR_CODE_ORCHESTRATION_TURN_WAITING
        assert "'r', which is parked and waits for 'c1'" in refused.error.message
        appended = [message_pb2.Message(role=message_pb2.ROLE_USER, content="And?")]
        with pytest.raises(PreconditionFailed, match="waits for 'c1'") as caught:
            await call_unary(
                "orchestrator",
                stub.UpdateSession,
                pb.UpdateSessionRequest(session_id="s", appended_messages=appended),
            )
        assert caught.value.code is ErrorCode.ORCHESTRATION_TURN_WAITING
        await resolve(stub)
        assert (await ended(stub, "r")).response.content == "done"
        later = system_request("And?", request_id="later", session_id="s")
        assert (await execute(stub, later, 30)).content == "done"
        reply = await call_unary("orchestrator", stub.GetSession, pb.GetSessionRequest(session_id="s"))
        assert [message.content for message in reply.session.messages if message.content][-2:] == ["And?", "done"]


async def test_callers_get_the_pieces_of_text_that_follow_a_parking(tmp_path):
    async with orchestrator(tmp_path, asking()) as stub:
        stream = asyncio.create_task(events_of(call_stream("orchestrator", stub.ExecuteStream, asks(), 30)))
        await waiting(stub)
        await parked(stub)
        following = asyncio.create_task(events_of(call_stream("orchestrator", stub.FollowExecution, FOLLOWED, 30)))
        await asyncio.sleep(0.1)
        await resolve(stub)
        for events in (await stream, await following):
            text = "".join(event.content_delta.text for event in events)
            assert text == events[-1].completed.response.content == "done"


async def test_a_caller_of_a_parked_execution_does_not_hold_up_the_end_of_the_orchestrator(tmp_path):
    async with orchestrator(tmp_path, asking()) as stub:
        whole = asyncio.create_task(execute(stub, asks(), 30))
        await waiting(stub)
        await parked(stub)
        stub.executions.begin_drain()
        with pytest.raises(Unavailable, match="is shutting down"):
            await whole
        assert (await get(stub)).HasField("wakes_at")


@pytest.mark.parametrize("deletes_session", [False, True])
async def test_a_parked_execution_is_deleted_with_what_it_waits_for(tmp_path, deletes_session):
    async with orchestrator(tmp_path, asking(), presence=LOOP) as stub:
        await begin(stub, asks(session_id="s"))
        await parked(stub)
        if deletes_session:
            await call_unary("orchestrator", stub.DeleteSession, pb.DeleteSessionRequest(session_id="s"))
        else:
            await call_unary("orchestrator", stub.DeleteExecution, pb.DeleteExecutionRequest(request_id="r"))
        with pytest.raises(NotFound):
            await get(stub)
        assert await waiting(stub, 0) == []
        with pytest.raises(NotFound):
            await resolve(stub)
        later = system_request("And?", request_id="later", session_id="s")
        stub.executions._environment.services.inference.outputs = [answer("done")]
        assert (await execute(stub, later, 30)).content == "done"


async def test_another_orchestrator_wakes_what_this_one_parked(tmp_path, postgres_url):
    other_services = asking()
    async with (
        orchestrator(tmp_path, asking(), url=postgres_url, owner="a") as one,
        orchestrator(tmp_path, other_services, url=postgres_url, owner="b", presence=LOOP) as other,
    ):
        other_services.inference.outputs = [answer("said by the other")]
        await begin(one, asks())
        following = asyncio.create_task(follow(one))
        await parked(one)
        await resolve(other)
        assert (await ended(one, "r")).response.content == "said by the other"
        kept = [event for event in await following if event.WhichOneof("event") != "content_delta"]
        assert [event.sequence for event in kept] == list(range(1, len(kept) + 1))
        assert len(other_services.tools.calls) == 1


@pytest.mark.parametrize("number", range(5))
async def test_a_decision_at_the_moment_of_parking_is_not_lost(tmp_path, monkeypatch, number):
    monkeypatch.setattr(execution, "PARK_AFTER_S", 0.02)
    async with orchestrator(tmp_path, asking(), presence=LOOP) as stub:
        await begin(stub, asks())
        await waiting(stub)
        await asyncio.sleep(0.005 * number)
        await resolve(stub)
        assert (await ended(stub, "r")).response.content == "done"
        assert stub.executions.registry.count == 0


@pytest.mark.parametrize("number", range(5))
async def test_a_cancellation_at_the_moment_of_parking_ends_the_execution(tmp_path, monkeypatch, number):
    monkeypatch.setattr(execution, "PARK_AFTER_S", 0.02)
    async with orchestrator(tmp_path, asking(), presence=LOOP) as stub:
        await begin(stub, asks())
        await waiting(stub)
        await asyncio.sleep(0.005 * number)
        reply = await call_unary("orchestrator", stub.CancelExecution, pb.CancelExecutionRequest(request_id="r"))
        assert reply.state == execution_pb2.LIFECYCLE_STATE_CANCELLED
        assert stub.executions.registry.count == 0


async def test_a_cancellation_while_the_parking_is_stored_ends_the_execution(tmp_path):
    async with orchestrator(tmp_path, asking(), presence=LOOP) as stub:
        park, is_storing, may_go_on = stub.journal.park, asyncio.Event(), asyncio.Event()

        async def slow(*arguments):
            is_storing.set()
            await may_go_on.wait()
            return await park(*arguments)

        stub.journal.park = slow
        whole = asyncio.create_task(execute(stub, asks(), 30))
        await is_storing.wait()
        request = pb.CancelExecutionRequest(request_id="r")
        cancelling = asyncio.create_task(call_unary("orchestrator", stub.CancelExecution, request))
        await asyncio.sleep(0.1)
        may_go_on.set()
        assert (await cancelling).state == execution_pb2.LIFECYCLE_STATE_CANCELLED
        assert (await whole).error.code == error_pb2.ERROR_CODE_CANCELLED_SIGNAL
        assert stub.executions.registry.count == 0


async def test_two_children_may_wait_for_calls_of_the_same_id(tmp_path):
    steps = [step(name, depends_on=["none"], parameters={"prompt": name, "tools": ["clock"]}) for name in ("a", "b")]
    inference = ScriptedInference(answer("", calls=[CALL]), answer("", calls=[CALL]), answer("well"))
    async with orchestrator(tmp_path, scripted_services(inference, tools=ScriptedTools())) as stub:
        await begin(stub, plan(step("none", "validate"), *steps, tool_rules=[ASK], background=True))
        await waiting(stub)
        await parked(stub, "p")
        await resolve(stub, request_id="p")
        response = (await ended(stub, "p")).response
        assert {result.output.content for result in response.step_results[1:]} == {"well"}
