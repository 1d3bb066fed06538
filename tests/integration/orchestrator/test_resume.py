"""Executions whose orchestrator died, taken up again from what it left."""

import asyncio

import pytest

from pagantic.common.v1 import error_pb2
from pagantic.constraint.v1 import contract_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.domain.errors import Conflict, NotFound, PaganticError, PreconditionFailed, Unavailable
from pagantic_common.domain.messages import Ending, LostCall, ToolCall
from pagantic_common.rpc.call import call_stream, call_unary
from pagantic_common.telemetry.clock import SystemClock
from services.orchestrator.adapters.journal.sql_journal import SqlJournal
from services.orchestrator.adapters.journal.writes import entry_from_json, entry_to_json
from services.orchestrator.app.running import admission
from services.orchestrator.convert.event import event_from_proto
from services.orchestrator.convert.request import fingerprint_of, request_from_proto
from services.orchestrator.convert.response import response_to_proto
from services.orchestrator.core.execution.replay import Admitted, replay
from services.orchestrator.core.model.request import Mode
from services.orchestrator.core.turn.run import State, Transition
from services.orchestrator.ports.journal import ExecutionRecord
from tests.integration.orchestrator.test_plans import TOOL, plan, step
from tests.support.orchestrator_app import (
    crash,
    ended,
    execute,
    journal_url,
    leave,
    orchestrator,
    stored,
    system_request,
    timeline,
)
from tests.support.scripted_services import (
    ScriptedConstraint,
    ScriptedInference,
    ScriptedTools,
    answer,
    scripted_services,
)

CALL = ToolCall("c1", "clock", "{}")
THREE_STEPS = plan(TOOL, step("think", parameters={"prompt": "Think."}), step("say", parameters={"prompt": "Say."}))
SCHEMA = contract_pb2.OutputContract(schema_json="{}")


def actions(events):
    return [event.action for event in events]


def without_gaps(events):
    return [event.sequence for event in events] == list(range(1, len(events) + 1))


async def resume(stub, request_id):
    request = pb.ResumeExecutionRequest(request_id=request_id)
    return await call_unary("orchestrator", stub.ResumeExecution, request)


@pytest.fixture
async def interrupted_plan(tmp_path):
    """The folder that an orchestrator left which died while a plan's second step was inferred."""
    inference = ScriptedInference(None)
    return await crash(
        tmp_path, scripted_services(inference=inference), THREE_STEPS, inference.waiting, stores=["step.end"]
    )


async def test_a_plan_goes_on_after_its_last_completed_step_when_its_request_is_sent_again(interrupted_plan):
    inference, tools = ScriptedInference(answer("thought"), answer("said")), ScriptedTools()
    async with orchestrator(interrupted_plan, scripted_services(inference=inference, tools=tools)) as stub:
        reply = await call_unary("orchestrator", stub.GetExecution, pb.GetExecutionRequest(request_id="p"))
        assert reply.execution.interrupted
        response = await execute(stub, THREE_STEPS)
        events = await timeline(stub, "p")
        reply = await call_unary("orchestrator", stub.GetExecution, pb.GetExecutionRequest(request_id="p"))
        assert not reply.execution.interrupted
    assert tools.calls == []
    assert response.content == "said"
    assert [result.name for result in response.step_results] == ["time", "think", "say"]
    assert [call.result for call in response.tool_calls_made] == ["noon"]
    assert without_gaps(events)
    resumed = actions(events).index("execution.resumed")
    assert events[resumed].resumed.completed_steps == 1
    assert [event.step_start.name for event in events[resumed:] if event.HasField("step_start")] == ["think", "say"]


async def test_a_plan_is_taken_up_without_being_asked_and_who_comes_joins_it(interrupted_plan):
    inference = ScriptedInference(None)
    services, presence = scripted_services(inference=inference), {"resumes_plans": True}
    async with orchestrator(interrupted_plan, services, presence=presence) as stub:
        await asyncio.wait_for(inference.waiting.wait(), 60)
        joined = asyncio.create_task(execute(stub, THREE_STEPS))
        with pytest.raises(PreconditionFailed, match="is not interrupted: it runs"):
            await resume(stub, "p")
        await call_unary("orchestrator", stub.CancelExecution, pb.CancelExecutionRequest(request_id="p"))
        response = await joined
    assert response.error.code == error_pb2.ERROR_CODE_CANCELLED_SIGNAL
    assert [result.name for result in response.step_results] == ["time"]


async def test_a_plan_that_ends_its_orchestrator_each_time_is_left_alone_after_some(tmp_path):
    folder = tmp_path
    for number in range(4):
        inference = ScriptedInference(None)
        services = scripted_services(inference=inference)
        if number == 0:
            folder = await crash(folder, services, THREE_STEPS, inference.waiting, stores=["step.end"])
        else:
            folder = await crash_again(folder, services, inference, number)
    inference = ScriptedInference(answer("done"))
    services, presence = scripted_services(inference=inference), {"resumes_plans": True}
    async with orchestrator(folder, services, presence=presence) as stub:
        await asyncio.sleep(0.1)
        reply = await call_unary("orchestrator", stub.GetExecution, pb.GetExecutionRequest(request_id="p"))
        assert reply.execution.interrupted
        reply = await resume(stub, "p")
        assert reply.state == execution_pb2.LIFECYCLE_STATE_EXECUTE
        assert (await ended(stub, "p")).response.content == "done"
        with pytest.raises(PreconditionFailed, match="is not interrupted: it has ended"):
            await resume(stub, "p")
        with pytest.raises(NotFound):
            await resume(stub, "never")


async def crash_again(folder, services, inference, count):
    left = folder / "left"
    left.mkdir()
    async with orchestrator(folder, services, presence={"resumes_plans": True}) as stub:
        await asyncio.wait_for(inference.waiting.wait(), 60)
        await stored(stub, "p", lambda events: actions(events).count("execution.resumed") == count)
        for name in ("journal.sqlite3", "journal.sqlite3-wal"):
            (left / name).write_bytes((folder / name).read_bytes())
    return left


async def test_a_chat_goes_on_after_its_last_tool_call(tmp_path):
    inference = ScriptedInference(answer("", [CALL]), None)
    request = system_request(request_id="r", session_id="s")
    folder = await crash(tmp_path, scripted_services(inference=inference), request, inference.waiting)
    again, tools = ScriptedInference(answer("it is noon")), ScriptedTools()
    async with orchestrator(folder, scripted_services(inference=again, tools=tools)) as stub:
        events = [event async for event in call_stream("orchestrator", stub.ExecuteStream, request)]
        reply = await call_unary("orchestrator", stub.GetSession, pb.GetSessionRequest(session_id="s"))
    assert tools.calls == []
    assert len(again.commands) == 1
    assert again.commands[0].messages[-1].content == "noon"
    stored = [event for event in events if event.WhichOneof("event") != "content_delta"]
    assert without_gaps(stored)
    assert events[-1].completed.response.token_usage.output_tokens == 6
    assert [message.content for message in reply.session.messages] == ["hi", "", "noon", "it is noon"]


@pytest.mark.parametrize("is_idempotent", [True, False])
async def test_a_call_that_may_have_run_is_run_again_only_when_that_does_no_harm(tmp_path, is_idempotent):
    tools = ScriptedTools(is_idempotent=is_idempotent, is_stuck=True)
    services = scripted_services(inference=ScriptedInference(answer("", [CALL])), tools=tools)
    request = system_request(request_id="r")
    folder = await crash(tmp_path, services, request, tools.called)
    tools, inference = ScriptedTools(is_idempotent=is_idempotent), ScriptedInference(answer("well"))
    async with orchestrator(folder, scripted_services(inference=inference, tools=tools)) as stub:
        response = await execute(stub, request)
    (call,) = response.tool_calls_made
    assert len(tools.calls) == int(is_idempotent)
    assert call.is_error != is_idempotent
    if not is_idempotent:
        assert call.error_code == error_pb2.ERROR_CODE_TOOL_OUTCOME_UNKNOWN
        assert "is unknown, and it may have happened" in inference.commands[0].messages[-1].content


@pytest.mark.parametrize("kind", ["tool", "infer"])
async def test_a_steps_call_that_may_have_run_is_not_made_again_and_is_told(tmp_path, kind):
    tools = ScriptedTools(is_stuck=True)
    steps = TOOL if kind == "tool" else step("ask", parameters={"tools": ["clock"]})
    request = plan(steps)
    services = scripted_services(inference=ScriptedInference(answer("", [CALL])), tools=tools)
    folder = await crash(tmp_path, services, request, tools.called)
    tools, inference = ScriptedTools(), ScriptedInference(answer("sorry"))
    async with orchestrator(folder, scripted_services(inference=inference, tools=tools)) as stub:
        response = await execute(stub, request)
    assert tools.calls == []
    if kind == "tool":
        assert response.error.code == error_pb2.ERROR_CODE_TOOL_OUTCOME_UNKNOWN
        assert "it may have happened" in response.error.message
    else:
        assert response.content == "sorry"
        assert "it may have happened" in inference.commands[0].messages[-1].content


@pytest.mark.parametrize("kind", ["chat", "tool", "infer"])
@pytest.mark.parametrize("ending", [Ending.DONE, Ending.NOT_RUN])
async def test_a_tool_that_knows_what_became_of_a_call_is_asked(tmp_path, kind, ending):
    steps = TOOL if kind == "tool" else step("ask", parameters={"tools": ["clock"]})
    request = system_request(request_id="p") if kind == "chat" else plan(steps)
    before = ScriptedTools(is_stuck=True)
    services = scripted_services(inference=ScriptedInference(answer("", [CALL])), tools=before)
    folder = await crash(tmp_path, services, request, before.called)
    tools, inference = ScriptedTools(result="called again"), ScriptedInference(answer("well"))
    tools.outcome = LostCall(ending, "done before")
    async with orchestrator(folder, scripted_services(inference=inference, tools=tools)) as stub:
        response = await execute(stub, request)
    (call,) = response.tool_calls_made
    assert (call.result, call.is_error) == ({Ending.DONE: "done before"}.get(ending, "called again"), False)
    assert tools.outcomes_asked == [("clock", before.effect_ids[0])]
    assert tools.effect_ids == ([] if ending is Ending.DONE else before.effect_ids)


async def test_a_replay_has_effects_of_its_own(tmp_path):
    tools, outputs = ScriptedTools(), [answer("", [CALL]), answer("noon")]
    async with orchestrator(tmp_path, scripted_services(ScriptedInference(*outputs, *outputs), tools=tools)) as stub:
        await execute(stub, system_request(request_id="first", keep_request=True))
        replayed = system_request(request_id="again", keep_request=True)
        replayed.replay.CopyFrom(execution_pb2.Replay(request_id="first", tools=execution_pb2.REPLAY_TOOLS_LIVE))
        await execute(stub, replayed)
    assert len(tools.effect_ids) == len(set(tools.effect_ids)) == 2


async def test_a_step_goes_on_after_the_tool_call_that_had_ended_inside_it(tmp_path):
    inference = ScriptedInference(answer("", [CALL]), None)
    request = plan(step("ask", parameters={"tools": ["clock"]}), step("say"))
    folder = await crash(tmp_path, scripted_services(inference=inference), request, inference.waiting)
    again, tools = ScriptedInference(answer("it is noon"), answer("said")), ScriptedTools()
    async with orchestrator(folder, scripted_services(inference=again, tools=tools)) as stub:
        response = await execute(stub, request)
    assert tools.calls == []
    assert [command.messages[-1].content for command in again.commands] == ["noon", "it is noon"]
    assert [call.result for call in response.tool_calls_made] == ["noon"]
    assert response.token_usage.output_tokens == 9, "of three inferences, none of them twice"


async def test_a_rejected_plan_whose_end_was_not_stored_ends_when_it_is_taken_up(tmp_path):
    request = plan(step("a"), step("b", "nothing"))
    journal = SqlJournal(journal_url(tmp_path))
    await journal.open()
    decoded = request_from_proto(request, "p")
    now = SystemClock().now()
    record = ExecutionRecord("p", "", "", Mode.PLAN, now, State.INIT, now, 1, fingerprint_of(request))
    await journal.admit(record, Admitted(decoded))
    await journal.close()
    async with orchestrator(tmp_path) as stub:
        response = await execute(stub, request)
        events = await timeline(stub, "p")
    assert response.error.code == error_pb2.ERROR_CODE_ORCHESTRATION_PLAN_REJECTED
    assert actions(events) == ["lifecycle.transition"] * 3 + ["execution.end"]


async def test_a_shutdown_interrupts_and_who_sends_the_request_again_gets_its_answer(tmp_path):
    inference = ScriptedInference(None)
    request = system_request(request_id="r", session_id="s")
    async with orchestrator(tmp_path, scripted_services(inference=inference)) as stub:
        first = asyncio.create_task(execute(stub, request))
        await inference.waiting.wait()
        await stub.executions.close()
        with pytest.raises(Unavailable, match="send the request again") as refused:
            await first
        assert refused.value.retry_after_s
    async with orchestrator(tmp_path, scripted_services(inference=ScriptedInference(answer("done")))) as stub:
        assert (await execute(stub, request)).content == "done"


async def test_an_interrupted_execution_can_be_cancelled_and_is_not_resumed_then(interrupted_plan):
    services, presence = scripted_services(), {"resumes_plans": True, "wait_until_ready": asyncio.Event().wait}
    async with orchestrator(interrupted_plan, services, presence=presence) as stub:
        reply = await call_unary("orchestrator", stub.CancelExecution, pb.CancelExecutionRequest(request_id="p"))
        assert reply.state == execution_pb2.LIFECYCLE_STATE_CANCELLED
        response = (await ended(stub, "p")).response
    assert response.error.code == error_pb2.ERROR_CODE_CANCELLED_SIGNAL
    assert [result.name for result in response.step_results] == ["time"]


async def test_the_time_of_a_request_goes_on_while_nobody_runs_it(tmp_path):
    inference = ScriptedInference(None)
    request = system_request(request_id="r")
    request.hints.timeout.FromMilliseconds(1500)
    folder = await crash(tmp_path, scripted_services(inference=inference), request, inference.waiting)
    await asyncio.sleep(1.5)
    async with orchestrator(folder) as stub:
        response = await execute(stub, request)
    assert response.error.code == error_pb2.ERROR_CODE_CANCELLED_TIMEOUT


async def test_a_resume_does_not_renew_the_time_that_an_execution_was_admitted_with(tmp_path):
    inference = ScriptedInference(None)
    request = system_request(request_id="r")
    folder = tmp_path / "left"
    async with orchestrator(tmp_path, scripted_services(inference=inference), max_execution_s=1.5) as stub:
        running = asyncio.create_task(execute(stub, request))
        await asyncio.wait_for(inference.waiting.wait(), 60)
        await stored(stub, "r", lambda events: "inference.start" in actions(events))
        leave(tmp_path, folder)
        response = await running
        assert response.error.code == error_pb2.ERROR_CODE_CANCELLED_TIMEOUT
        assert "the longest that one may, 1.5 s (MAX_EXECUTION_S)" in response.error.message
    async with orchestrator(folder, max_execution_s=3600) as stub:
        response = await execute(stub, request)
    assert response.error.code == error_pb2.ERROR_CODE_CANCELLED_TIMEOUT


async def test_a_request_may_have_less_time_than_the_longest_and_not_more(tmp_path):
    inference = ScriptedInference(None)
    async with orchestrator(tmp_path, scripted_services(inference=inference), max_execution_s=0.2) as stub:
        for timeout_s, reason in ((0.05, "the request's time is up"), (1e6, "MAX_EXECUTION_S")):
            request = system_request()
            request.hints.timeout.FromNanoseconds(round(timeout_s * 1e9))
            response = await execute(stub, request)
            assert response.error.code == error_pb2.ERROR_CODE_CANCELLED_TIMEOUT
            assert reason in response.error.message


async def test_an_orchestrator_that_drains_takes_up_nothing(interrupted_plan):
    presence = {"resumes_plans": True, "beat_s": 0.02, "wait_until_ready": asyncio.Event().wait}
    async with orchestrator(interrupted_plan, presence=presence) as stub:
        stub.executions.begin_drain()
        with pytest.raises(Unavailable, match="shutting down"):
            await resume(stub, "p")
        reply = await call_unary("orchestrator", stub.GetExecution, pb.GetExecutionRequest(request_id="p"))
        assert reply.execution.interrupted


async def test_a_session_is_free_again_after_a_resume_that_could_not_start(tmp_path, monkeypatch):
    inference = ScriptedInference(None, answer("next"))
    request = system_request(request_id="r", session_id="s")
    folder = await crash(tmp_path, scripted_services(inference=inference), request, inference.waiting)
    services = scripted_services(inference=ScriptedInference(answer("next")))
    async with orchestrator(folder, services, presence={"resumes_plans": False, "beat_s": 0.02}) as stub:
        with monkeypatch.context() as patched:
            patched.setattr(admission, "Start", failing)
            with pytest.raises(PaganticError):
                await resume(stub, "r")
        assert not stub.turns._lines
        assert (await execute(stub, system_request(session_id="s"))).content == "next"


def failing(*_arguments):
    raise RuntimeError("no start")


async def test_another_payload_does_not_take_up_what_was_interrupted(interrupted_plan):
    async with orchestrator(interrupted_plan) as stub:
        with pytest.raises(Conflict, match="another payload"):
            await execute(stub, plan(TOOL))


class Copying(SqlJournal):
    """Keeps what it is given to take executions up from, as it is stored."""

    copied = ()

    async def admit(self, record, admitted, **fields):
        self.copied += (self.stored(admitted),)
        return await super().admit(record, admitted, **fields)

    def write(self, write, **fields):
        self.copied += tuple(map(self.stored, write.entries))
        return super().write(write, **fields)

    @staticmethod
    def stored(entry):
        return entry_from_json(entry_to_json(entry))


VOTE = {"mode": execution_pb2.MODE_REDUNDANT, "output": SCHEMA}


@pytest.mark.parametrize(
    ("request_", "services"),
    [
        (system_request(session_id="s"), {"inference": ScriptedInference(answer("", [CALL]), answer("noon"))}),
        (
            system_request(mode=execution_pb2.MODE_STRUCTURED, output=SCHEMA),
            {"inference": ScriptedInference(answer("bad"), answer("{}")), "constraint": ScriptedConstraint("bad")},
        ),
        (THREE_STEPS, {}),
        (plan(step("a"), step("b", "nothing")), {}),
        (system_request(**VOTE), {"inference": ScriptedInference(answer("1"), answer("2"), answer("1"))}),
        (system_request(**VOTE), {"inference": ScriptedInference(Unavailable("gone"))}),
        (system_request(mode=execution_pb2.MODE_STRUCTURED), {}),
    ],
)
async def test_every_journal_replayed_gives_the_states_and_the_response_that_it_tells(tmp_path, request_, services):
    request = type(request_)()
    request.CopyFrom(request_)
    request.request_id = "r"
    journal = Copying(journal_url(tmp_path))
    async with orchestrator(tmp_path, scripted_services(**services), journal=journal) as stub:
        response = await execute(stub, request)
        events = [event_from_proto(event) for event in await timeline(stub, "r")]
    found = replay(journal.copied)
    told = [event.payload for event in events if isinstance(event.payload, Transition)]
    assert list(found.transitions) == told
    finish = found.outcome.command
    assert response_to_proto(finish.response) == response
