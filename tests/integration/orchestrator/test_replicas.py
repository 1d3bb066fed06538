"""Several orchestrators with one journal."""

import asyncio

import pytest

from pagantic.common.v1 import error_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.domain.errors import Aborted, Internal, Unavailable
from pagantic_common.rpc.call import call_stream, call_unary
from pagantic_common.telemetry.clock import SystemClock
from services.orchestrator.adapters.journal.sql_journal import SqlJournal
from services.orchestrator.app.running.environment import ConcurrentTurns
from services.orchestrator.convert.request import fingerprint_of, request_from_proto
from services.orchestrator.core.execution.replay import Admitted
from services.orchestrator.core.model.request import Mode
from services.orchestrator.core.turn.run import State
from services.orchestrator.ports.journal import ExecutionRecord
from tests.integration.orchestrator.test_plans import TOOL, plan, step
from tests.support.keys import execution
from tests.support.orchestrator_app import execute, journal_url, orchestrator, stored, system_request
from tests.support.scripted_services import ScriptedInference, ScriptedTools, answer, scripted_services

CHAT = system_request(request_id="r")
TURN = {"session_id": "s"}
PLAN = plan(TOOL, step("say"))


async def cancel(stub, request_id):
    return await call_unary("orchestrator", stub.CancelExecution, pb.CancelExecutionRequest(request_id=request_id))


async def test_who_comes_to_another_orchestrator_joins_the_run(tmp_path):
    inference, idle = ScriptedInference(None), ScriptedInference(answer("never"))
    async with (
        orchestrator(tmp_path, scripted_services(inference=inference), owner="a", presence=FAST) as one,
        orchestrator(tmp_path, scripted_services(inference=idle), owner="b") as other,
    ):
        first = asyncio.create_task(execute(one, CHAT))
        await inference.waiting.wait()
        joined = asyncio.create_task(execute(other, CHAT))
        reply = await cancel(other, "r")
        assert reply.state == execution_pb2.LIFECYCLE_STATE_CANCELLED
        assert await first == await joined
        assert (await first).error.code == error_pb2.ERROR_CODE_CANCELLED_SIGNAL
    assert idle.commands == []


FAST = {"resumes_plans": True, "beat_s": 0.02, "lease_s": 30.0}


async def test_the_plan_of_an_orchestrator_that_died_is_taken_over_and_it_cannot_write_any_more(tmp_path):
    inference, again, tools = ScriptedInference(None), ScriptedInference(answer("done")), ScriptedTools()
    async with orchestrator(tmp_path, scripted_services(inference=inference), owner="dead") as dead:
        lost = asyncio.create_task(execute(dead, PLAN))
        await inference.waiting.wait()
        await stored(dead, "p", lambda events: "step.end" in [event.action for event in events])
        services = scripted_services(inference=again, tools=tools)
        presence = {"resumes_plans": True, "beat_s": 0.02, "lease_s": 0.1}
        async with orchestrator(tmp_path, services, owner="alive", presence=presence) as alive:
            events = [event async for event in call_stream("orchestrator", alive.ExecuteStream, PLAN)]
            assert events[-1].completed.response.content == "done"
            assert [event.sequence for event in events if event.WhichOneof("event") != "content_delta"] == list(
                range(1, events[-1].sequence + 1)
            )
            await cancel(dead, "p")
            with pytest.raises(Internal, match="could not be recorded"):
                await lost
    assert tools.calls == []


async def test_a_plan_that_was_given_up_is_taken_up_again_and_one_that_cannot_be_read_is_left(tmp_path):
    inference = ScriptedInference(None, answer("done"))
    async with orchestrator(tmp_path, scripted_services(inference=inference), presence=FAST) as stub:
        journal = stub.journal
        now = SystemClock().now()
        for request_id, entry in (("unreadable", Admitted(None)), ("p", None)):
            record = ExecutionRecord(request_id, "", "", Mode.PLAN, now, State.INIT, now, 1, fingerprint_of(PLAN))
            await journal.admit(record, entry or Admitted(request_from_proto(PLAN, "p")))
        await journal.release([execution("unreadable"), execution("p")])
        await asyncio.wait_for(inference.waiting.wait(), 60)
        await cancel(stub, "p")
        unread = await call_unary("orchestrator", stub.GetExecution, pb.GetExecutionRequest(request_id="unreadable"))
    assert unread.execution.response == execution_pb2.SystemResponse()


@pytest.mark.parametrize("policy", list(ConcurrentTurns))
async def test_turns_of_one_session_follow_each_other_in_every_orchestrator(tmp_path, policy):
    inference, idle = ScriptedInference(None, answer("one")), ScriptedInference(answer("two"))
    services = scripted_services(inference=inference)
    async with (
        orchestrator(tmp_path, services, owner="a", concurrent_turns=policy) as one,
        orchestrator(tmp_path, scripted_services(inference=idle), owner="b", concurrent_turns=policy) as other,
    ):
        first = asyncio.create_task(execute(one, system_request("first", request_id="r1", **TURN)))
        await inference.waiting.wait()
        for stub in (one, other):
            second = asyncio.create_task(execute(stub, system_request("second", **TURN)))
            if policy is ConcurrentTurns.ABORT:
                with pytest.raises(Aborted, match="another turn of session 's' runs") as refused:
                    await second
                assert refused.value.retry_after_s
                continue
            await stored_transition(stub, second)
            assert len(inference.commands) == 1
            assert idle.commands == []
            second.cancel()
        if policy is ConcurrentTurns.WAIT:
            second = asyncio.create_task(execute(other, system_request("second", **TURN)))
        await cancel(one, "r1")
        assert (await first).error.code == error_pb2.ERROR_CODE_CANCELLED_SIGNAL
        if policy is ConcurrentTurns.WAIT:
            assert (await second).content == "two"
        else:
            assert (await execute(other, system_request("second", **TURN))).content == "two"
        assert len(idle.commands) == 1


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
async def test_turns_do_not_swap_when_the_orchestrator_of_the_first_stops(tmp_path, request, database):
    url = journal_url(tmp_path) if database == "sqlite" else request.getfixturevalue("postgres_url")
    journals = [SqlJournal(url, owner=name, interrupted_turn_s=30.0) for name in "ab"]
    inference, after = ScriptedInference(None), ScriptedInference(answer("one"), answer("two"), answer("three"))
    async with (
        orchestrator(tmp_path, scripted_services(inference=inference), journal=journals[0], presence=FAST) as one,
        orchestrator(tmp_path, scripted_services(inference=after), journal=journals[1], presence=FAST) as other,
    ):
        first = asyncio.create_task(execute(one, system_request("first", request_id="r1", **TURN)))
        await inference.waiting.wait()
        second = asyncio.create_task(execute(other, system_request("second", **TURN), 30))
        await stored_transition(other, second)
        await one.executions.close()
        with pytest.raises(Unavailable):
            await first
        third = asyncio.create_task(execute(other, system_request("third", **TURN), 30))
        await asyncio.sleep(0.5)
        assert after.commands == []
        assert (await execute(other, system_request("first", request_id="r1", **TURN), 30)).content == "one"
        assert (await second).content == "two"
        assert (await third).content == "three"
        reply = await call_unary("orchestrator", other.GetSession, pb.GetSessionRequest(session_id="s"))
    assert [message.content for message in reply.session.messages][::2] == ["first", "second", "third"]


async def stored_transition(stub, running):
    """Wait until the newest execution is admitted; it waits for its turn then."""
    for _ in range(300):
        listed = await call_unary("orchestrator", stub.ListExecutions, pb.ListExecutionsRequest())
        if len(listed.executions) >= 2 or running.done():
            break
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    assert not running.done()


async def test_many_turns_at_once_leave_a_whole_conversation(tmp_path, postgres_url):
    """Each question is followed by its answer, whoever took the turn."""
    async with (
        orchestrator(tmp_path, url=postgres_url, owner="a") as one,
        orchestrator(tmp_path, url=postgres_url, owner="b") as other,
    ):
        asked = [execute((one, other)[number % 2], system_request(f"q{number}", **TURN)) for number in range(8)]
        assert not [response.error.message for response in await asyncio.gather(*asked) if response.HasField("error")]
        reply = await call_unary("orchestrator", one.GetSession, pb.GetSessionRequest(session_id="s"))
    contents = [message.content for message in reply.session.messages]
    assert sorted(contents[::2]) == [f"q{number}" for number in range(8)]
    assert contents[1::2] == ["hello"] * 8
