"""Recorded executions that run again from one of their steps on, with changes and without."""

import asyncio
import json
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest

from pagantic.common.v1 import error_pb2
from pagantic.constraint.v1 import contract_pb2
from pagantic.orchestrator.v1 import approval_pb2, execution_pb2, key_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.domain.chunks import Chunk
from pagantic_common.domain.errors import ErrorCode, InvalidRequest, NotFound, PermissionDenied, PreconditionFailed
from pagantic_common.domain.messages import ToolCall, ToolSafety
from pagantic_common.rpc.call import call_unary
from tests.integration.orchestrator.test_approvals import waiting
from tests.integration.orchestrator.test_identity import ask as ask_as
from tests.integration.orchestrator.test_identity import guarded, key_of
from tests.integration.orchestrator.test_plans import plan, states, step
from tests.support.guarded_app import KEY, guard, guarded_orchestrator
from tests.support.orchestrator_app import crash, execute, orchestrator, stored, system_request, timeline
from tests.support.scripted_services import (
    ScriptedConstraint,
    ScriptedContext,
    ScriptedInference,
    ScriptedTools,
    answer,
    scripted_services,
)

CALL = ToolCall("c1", "clock", '{"zone": "UTC"}')
SCHEMA = contract_pb2.OutputContract(schema_json="{}")
LIVE = execution_pb2.REPLAY_TOOLS_LIVE


def recorded(text="hi", **fields):
    return system_request(text, request_id="first", keep_request=True, **fields)


async def replay(stub, request_id="again", *, changes=None, without=(), **fields):
    """Run the recorded execution `first` again with changed fields of its request."""
    reply = await call_unary("orchestrator", stub.GetExecution, pb.GetExecutionRequest(request_id="first"))
    request = reply.execution.request
    request.MergeFrom(execution_pb2.SystemRequest(**(changes or {})))
    for name in ("session_id", *without):
        request.ClearField(name)
    request.request_id = request_id
    request.replay.MergeFrom(execution_pb2.Replay(request_id="first", **fields))
    return await execute(stub, request)


async def steps_of(stub, request_id="first"):
    reply = await call_unary("orchestrator", stub.ListSteps, pb.ListStepsRequest(request_id=request_id))
    return list(reply.steps)


def names(steps):
    return [step.name for step in steps]


def seeded(content, seed, calls=()):
    return replace(answer(content, calls), seed=seed, model="small")


def two_rounds(**fields):
    """Answers of an execution with a tool call, and of one replay."""
    return ScriptedInference(
        seeded("", 7, [CALL]), seeded("It is noon.", 8), *(seeded(text, 9) for text in fields.get("more", ["Noon."]))
    )


async def test_the_steps_of_an_execution_say_what_each_gave(tmp_path):
    services = scripted_services(inference=two_rounds(), context=ScriptedContext(Chunk("1", "the sea", "docs")))
    async with orchestrator(tmp_path, services) as stub:
        context = {"collection": "docs"}
        await execute(stub, recorded(context=context, prompt=execution_pb2.SystemPrompt(text="Be brief.")))
        prepare, asked, ran, answered = await steps_of(stub)
        assert names([prepare, asked, ran, answered]) == ["prepare", "infer-1", "tools-1", "infer-2"]
        assert "the sea" in prepare.content
        assert (prepare.system_prompt, prepare.offered_tools, prepare.history_count) == ("Be brief.", ["clock"], 0)
        assert [call.arguments_json for call in asked.tool_calls] == [CALL.arguments_json]
        assert (asked.seed, asked.model, asked.usage.output_tokens) == (7, "small", 3)
        assert [(made.id, made.result) for made in ran.tool_calls_made] == [("c1", "noon")]
        assert answered.content == "It is noon."


async def test_steps_are_those_of_kept_requests_alone(tmp_path):
    async with orchestrator(tmp_path) as stub:
        await execute(stub, system_request(request_id="first"))
        with pytest.raises(PreconditionFailed, match="keep_request"):
            await steps_of(stub)
        with pytest.raises(PreconditionFailed, match="keep_request"):
            await execute(stub, system_request(request_id="r", replay=execution_pb2.Replay(request_id="first")))
        with pytest.raises(NotFound):
            await steps_of(stub, "unknown")
        with pytest.raises(NotFound):
            await execute(stub, system_request(request_id="r", replay=execution_pb2.Replay(request_id="unknown")))


async def test_a_replay_asks_again_with_the_recorded_seeds_and_calls_no_tool(tmp_path):
    inference, tools = two_rounds(more=["Noon."]), ScriptedTools(safety=ToolSafety.EXTERNAL)
    inference.outputs[2:] = [seeded("", 7, [replace(CALL, id="c2")]), seeded("It is noon.", 8)]
    async with orchestrator(tmp_path, scripted_services(inference=inference, tools=tools)) as stub:
        first = await execute(stub, recorded(tools=["clock"]))
        again = await replay(stub)
        assert again.content == first.content == "It is noon."
        assert [command.seed for command in inference.commands] == [None, None, 7, 8]
        assert len(tools.calls) == 1
        assert [(made.id, made.result) for made in again.tool_calls_made] == [("c2", "noon")]
        before, after = await timeline(stub, "first"), await timeline(stub, "again")
        assert states(after) == states(before)
        assert [event.step_recorded.name for event in after if event.HasField("step_recorded")] == ["prepare"]
        assert names(await steps_of(stub, "again")) == names(await steps_of(stub))
        usage = again.token_usage
        assert (usage.prompt_tokens, usage.output_tokens) == (20, 6)


async def test_a_fork_takes_what_was_before_it_for_nothing(tmp_path):
    inference = two_rounds(more=["Midday."])
    async with orchestrator(tmp_path, scripted_services(inference=inference)) as stub:
        await execute(stub, recorded())
        changes = {"prompt": execution_pb2.SystemPrompt(text="Be brief."), "hints": {"model": "other", "seed": 3}}
        again = await replay(stub, changes=changes, from_step="infer-2")
        assert again.content == "Midday."
        assert again.token_usage.output_tokens == 3
        last = inference.commands[-1]
        assert [message.content for message in last.messages] == ["Be brief.", "hi", "", "noon"]
        assert (inference.hinted[-1].model, last.seed) == ("other", 3)
        taken = [event.step_recorded.name for event in await timeline(stub, "again") if event.HasField("step_recorded")]
        assert taken == ["prepare", "infer-1", "tools-1"]
        usage = await call_unary("orchestrator", stub.GetUsage, pb.GetUsageRequest())
        assert sum(total.output_tokens for total in usage.totals) == 9


async def test_a_changed_result_of_a_tool_is_what_the_model_reads(tmp_path):
    inference, tools = two_rounds(more=["It is night."]), ScriptedTools()
    async with orchestrator(tmp_path, scripted_services(inference=inference, tools=tools)) as stub:
        await execute(stub, recorded())
        changed = execution_pb2.ChangedResult(tool_call_id="c1", result="midnight")
        again = await replay(stub, tool_results=[changed])
        assert again.content == "It is night."
        assert inference.commands[-1].messages[-1].content == "midnight"
        assert [made.result for made in again.tool_calls_made] == ["midnight"]
        assert len(tools.calls) == 1
        with pytest.raises(InvalidRequest, match=r"call 'c9'.*does not have"):
            await replay(stub, "r", tool_results=[execution_pb2.ChangedResult(tool_call_id="c9")])


@pytest.mark.parametrize(
    ("safety", "tools", "calls", "denied"),
    [
        (ToolSafety.READ, "REPLAY_TOOLS_UNSPECIFIED", 2, []),
        (ToolSafety.EXTERNAL, "REPLAY_TOOLS_UNSPECIFIED", 1, [error_pb2.ERROR_CODE_TOOL_DENIED]),
        (ToolSafety.EXTERNAL, "REPLAY_TOOLS_LIVE", 2, []),
    ],
)
async def test_other_calls_than_the_recorded_ones_change_nothing_unless_the_caller_says_so(
    tmp_path, safety, tools, calls, denied
):
    inference, clock = two_rounds(), ScriptedTools(safety=safety)
    inference.outputs[2:] = [seeded("", 7, [replace(CALL, arguments_json='{"zone": "CET"}')]), seeded("One.", 8)]
    async with orchestrator(tmp_path, scripted_services(inference=inference, tools=clock)) as stub:
        await execute(stub, recorded(tools=["clock"]))
        again = await replay(stub, tools=tools)
        assert not again.HasField("error")
        assert len(clock.calls) == calls
        assert [made.error_code for made in again.tool_calls_made if made.is_error] == denied


async def test_live_tools_are_called_again_for_recorded_calls_too(tmp_path):
    inference, tools = two_rounds(), ScriptedTools()
    inference.outputs[2:] = [seeded("", 7, [replace(CALL, id="c2")]), seeded("One.", 8)]
    async with orchestrator(tmp_path, scripted_services(inference=inference, tools=tools)) as stub:
        await execute(stub, recorded())
        tools.result = "one"
        again = await replay(stub, tools=LIVE)
        assert [made.result for made in again.tool_calls_made] == ["one"]


async def test_a_turn_of_a_conversation_is_replayed_as_it_was_and_changes_nothing(tmp_path):
    inference = ScriptedInference(*(answer(text) for text in ("one", "two", "three", "again")))
    async with orchestrator(tmp_path, scripted_services(inference=inference)) as stub:
        await execute(stub, system_request("a", session_id="talk"))
        await execute(stub, recorded("b", session_id="talk"))
        await execute(stub, system_request("c", session_id="talk"))
        again = await replay(stub)
        assert again.content == "again"
        assert [message.content for message in inference.commands[-1].messages] == ["a", "one", "b"]
        session = await call_unary("orchestrator", stub.GetSession, pb.GetSessionRequest(session_id="talk"))
        assert session.session.message_count == 6
        assert (await steps_of(stub, "again"))[0].history_count == 2
        with pytest.raises(InvalidRequest, match="turn of a conversation"):
            await replay(stub, "r", from_step="prepare")
        with pytest.raises(InvalidRequest, match="leave session_id empty"):
            await execute(
                stub, system_request(request_id="r", session_id="s", replay=execution_pb2.Replay(request_id="first"))
            )


async def test_what_prepare_settles_changes_only_when_it_runs_again(tmp_path):
    context = ScriptedContext(Chunk("1", "old words", "docs"))
    async with orchestrator(tmp_path, scripted_services(context=context)) as stub:
        await execute(stub, recorded(context={"collection": "docs"}))
        context.chunks = (Chunk("1", "new words", "docs"),)
        await replay(stub, "kept")
        assert "old words" in (await steps_of(stub, "kept"))[0].content
        with pytest.raises(InvalidRequest, match="context differs from the recorded request"):
            await replay(stub, "r", changes={"context": {"collection": "other"}})
        await replay(stub, "fresh", changes={"context": {"collection": "other"}}, from_step="prepare")
        assert "new words" in (await steps_of(stub, "fresh"))[0].content


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"from_step": "infer-9"}, "no step 'infer-9'; its steps: prepare, infer-1"),
        ({"changes": {"mode": execution_pb2.MODE_DECIDE}}, "DECIDE"),
        ({"tools": 9}, "replay.tools 9 is not known"),
        ({"tool_results": [execution_pb2.ChangedResult(tool_call_id="c")] * 129}, "at most 128"),
        ({"tool_results": [execution_pb2.ChangedResult(tool_call_id="c")] * 2}, "2 results of the call 'c'"),
    ],
)
async def test_a_replay_that_cannot_be_is_refused_and_nothing_is_executed(tmp_path, fields, message):
    inference = ScriptedInference(answer("one"))
    async with orchestrator(tmp_path, scripted_services(inference=inference)) as stub:
        await execute(stub, recorded())
        with pytest.raises(InvalidRequest, match=message):
            await replay(stub, **fields)
        assert len(inference.commands) == 1
        with pytest.raises(NotFound):
            await timeline(stub, "again")


async def test_a_retried_answer_is_replayed_from_its_retry(tmp_path):
    inference = ScriptedInference(*(seeded(text, seed) for text, seed in (("bad", 1), ("{}", 2), ("[]", 3))))
    request = recorded(mode=execution_pb2.MODE_STRUCTURED, output=SCHEMA, retry={"max_retries": 1})
    services = scripted_services(inference=inference, constraint=ScriptedConstraint("bad"))
    async with orchestrator(tmp_path, services) as stub:
        await execute(stub, request)
        assert names(await steps_of(stub)) == ["prepare", "infer-1", "validate-1", "infer-2", "validate-2"]
        again = await replay(stub, from_step="infer-2")
        assert again.structured_output_json == "[]"
        assert states(await timeline(stub, "again")) == states(await timeline(stub, "first"))


async def test_a_vote_and_decisions_are_replayed(tmp_path):
    inference = ScriptedInference(*[seeded("{}", 5)] * 3)
    async with orchestrator(tmp_path, scripted_services(inference=inference)) as stub:
        await execute(stub, recorded(mode=execution_pb2.MODE_REDUNDANT, output=SCHEMA))
        assert [len(step.candidates) for step in await steps_of(stub)] == [0, 3]
        again = await replay(stub)
        assert again.confidence == 1
        assert inference.commands[-1].seed == 5
        same = await replay(stub, "same", from_step="sample")
        assert same.content == again.content


PLAN = [
    step("time", "tool", parameters={"tool": "clock", "arguments": {"zone": "UTC"}}),
    step("alone", depends_on=["time"], parameters={"prompt": "Think."}),
    step("beside", depends_on=["time"], parameters={"prompt": "Look."}),
    step("say", depends_on=["alone"], parameters={"prompt": "Say."}),
]


async def test_a_fork_of_a_plan_runs_a_step_and_what_depends_on_it_again(tmp_path):
    inference, tools = ScriptedInference(answer("thought")), ScriptedTools()
    async with orchestrator(tmp_path, scripted_services(inference=inference, tools=tools)) as stub:
        request = plan(*PLAN, keep_request=True)
        request.request_id = "first"
        await execute(stub, request)
        ended = [name for name in names(await steps_of(stub)) if name.count("/") < 2]
        assert sorted(ended) == ["plan/alone", "plan/beside", "plan/say", "plan/time", "prepare"]
        assert (len(inference.commands), len(tools.calls)) == (3, 1)
        inference.outputs = [answer("other")]
        again = await replay(stub, from_step="plan/alone")
        assert [(one.name, one.output.content) for one in again.step_results if one.kind == "infer"] == [
            ("beside", "thought"), ("alone", "other"), ("say", "other"),
        ]  # fmt: skip
        assert (len(inference.commands), len(tools.calls)) == (5, 1)
        assert again.token_usage.output_tokens == 6


THINK = step("think", parameters={"prompt": "Think.", "tools": ["clock"]})
THINK_AND_SAY = [THINK, step("say", parameters={"prompt": "Say."})]


async def recorded_children(stub):
    """Run a plan whose first step calls a tool, and return the names of its steps."""
    request = plan(*THINK_AND_SAY, keep_request=True)
    request.request_id = "first"
    await execute(stub, request)
    return names(await steps_of(stub))


def thinking():
    return ScriptedInference(answer("", calls=[CALL]), answer("thought"), answer("said"))


async def test_a_replay_runs_a_step_of_a_plan_again_from_the_middle(tmp_path):
    inference, tools = thinking(), ScriptedTools()
    async with orchestrator(tmp_path, scripted_services(inference=inference, tools=tools)) as stub:
        inside = [f"plan/think/{name}" for name in ("prepare", "infer-1", "tools-1", "infer-2")]
        after = ["plan/think", "plan/say/prepare", "plan/say/infer-1", "plan/say"]
        assert await recorded_children(stub) == ["prepare", *inside, *after]
        made = {step.name: step for step in await steps_of(stub)}
        assert [call.id for call in made["plan/think/tools-1"].tool_calls_made] == ["c1"]
        inference.outputs = [answer("other"), answer("said otherwise")]
        again = await replay(stub, from_step="plan/think/infer-2")
        assert [result.output.content for result in again.step_results] == ["other", "said otherwise"]
        assert (len(inference.commands), len(tools.calls)) == (5, 1)
        events = await timeline(stub, "again")
        recorded_steps = [event.step_recorded.name for event in events if event.action == "step.recorded"]
        assert recorded_steps == ["prepare", *inside[:-1]]
        changed = plan(step("think", parameters={"prompt": "Guess.", "tools": ["clock"]}), THINK_AND_SAY[1])
        changed.request_id = "changed"
        changed.replay.MergeFrom(execution_pb2.Replay(request_id="first", from_step="plan/think/infer-2"))
        with pytest.raises(InvalidRequest, match="step 'plan/think' was changed"):
            await execute(stub, changed)


async def test_a_changed_result_is_read_by_the_child_whose_call_gave_it(tmp_path):
    inference, tools = thinking(), ScriptedTools()
    async with orchestrator(tmp_path, scripted_services(inference=inference, tools=tools)) as stub:
        await recorded_children(stub)
        inference.outputs = [answer("midnight"), answer("good night")]
        changed = [execution_pb2.ChangedResult(tool_call_id="c1", result="00:00")]
        await replay(stub, tool_results=changed)
        assert [message.content for message in inference.commands[3].messages][-1] == "00:00"
        assert (len(inference.commands), len(tools.calls)) == (5, 1)
        for from_step in ("plan/say", "plan/say/infer-1"):
            with pytest.raises(InvalidRequest, match="name that step"):
                await replay(stub, "r", tool_results=changed, from_step=from_step)


async def test_a_step_is_not_continued_from_the_middle_when_its_input_changes(tmp_path):
    inference = ScriptedInference(answer("first"), answer("", calls=[CALL]), answer("second"))
    steps = [step("look", parameters={"prompt": "Look."}), THINK]
    async with orchestrator(tmp_path, scripted_services(inference=inference)) as stub:
        request = plan(*steps, keep_request=True)
        request.request_id = "first"
        await execute(stub, request)
        changed = plan(step("look", parameters={"prompt": "Look again."}), THINK)
        changed.request_id = "changed"
        changed.replay.MergeFrom(execution_pb2.Replay(request_id="first", from_step="plan/think/infer-2"))
        with pytest.raises(InvalidRequest, match="an input of step 'plan/think' changes"):
            await execute(stub, changed)


async def test_a_step_that_a_replay_runs_again_has_its_own_constraint_and_tools(tmp_path):
    steps = [
        step("time", "tool", parameters={"tool": "clock", "arguments": {}}),
        step(
            "pick", parameters={"prompt": "Pick."}, output=contract_pb2.OutputContract(schema_json='{"type":"object"}')
        ),
    ]
    inference = ScriptedInference(answer("{}"))
    async with orchestrator(tmp_path, scripted_services(inference=inference)) as stub:
        request = plan(*steps, keep_request=True)
        request.request_id = "first"
        await execute(stub, request)
        await replay(stub, from_step="plan/pick")
        first, again = inference.commands
        assert first.engine_text
        assert (again.engine_text, again.tools) == (first.engine_text, ())


async def test_a_changed_result_of_a_plans_tool_runs_its_step_again_from_the_record(tmp_path):
    inference, tools = ScriptedInference(answer("thought")), ScriptedTools(safety=ToolSafety.EXTERNAL)
    async with orchestrator(tmp_path, scripted_services(inference=inference, tools=tools)) as stub:
        request = plan(*PLAN, keep_request=True)
        request.request_id = "first"
        await execute(stub, request)
        changed = [execution_pb2.ChangedResult(tool_call_id="time-1", result="midnight")]
        again = await replay(stub, tool_results=changed)
        outputs = {one.name: one.output for one in again.step_results}
        assert [one.content for one in outputs["time"].tool_results.tool_results] == ["midnight"]
        assert len(tools.calls) == 1
        assert len(inference.commands) == 6
        with pytest.raises(InvalidRequest, match="name that step"):
            await replay(stub, "r", tool_results=changed, from_step="plan/say")


async def test_a_replay_that_was_interrupted_goes_on_and_takes_the_same(tmp_path):
    inference, tools = ScriptedInference(seeded("", 7, [CALL]), seeded("It is noon.", 8)), ScriptedTools()
    async with orchestrator(tmp_path, scripted_services(inference=inference, tools=tools)) as stub:
        await execute(stub, recorded())
    again = recorded(replay=execution_pb2.Replay(request_id="first", from_step="infer-2"))
    again.request_id = "again"
    stuck = ScriptedInference(None)
    left = await crash(tmp_path, scripted_services(inference=stuck, tools=tools), again, stuck.waiting)
    resumed = ScriptedInference(seeded("Noon.", 8))
    async with orchestrator(left, scripted_services(inference=resumed, tools=tools)) as stub:
        response = await execute(stub, again)
        assert response.content == "Noon."
        assert [message.content for message in resumed.commands[0].messages] == ["hi", "", "noon"]
        assert resumed.commands[0].seed == 8
        assert len(tools.calls) == 1


async def test_a_replay_is_joined_under_its_id_when_the_record_is_gone(tmp_path):
    async with orchestrator(tmp_path, scripted_services(inference=two_rounds())) as stub:
        await execute(stub, recorded())
        again = await replay(stub)
        sent = recorded(replay=execution_pb2.Replay(request_id="first"))
        sent.request_id = "again"
        await call_unary("orchestrator", stub.DeleteExecution, pb.DeleteExecutionRequest(request_id="first"))
        assert (await execute(stub, sent)).content == again.content
        sent.request_id = "new"
        with pytest.raises(NotFound):
            await execute(stub, sent)


async def test_a_replay_needs_the_scope_of_reading_too(tmp_path):
    async with guarded(tmp_path) as stub:
        both, execute_only = [
            (await key_of(stub, "acme", scopes=scopes)).text
            for scopes in ([key_pb2.KEY_SCOPE_EXECUTE, key_pb2.KEY_SCOPE_READ], [key_pb2.KEY_SCOPE_EXECUTE])
        ]
        await ask_as(stub, "Execute", recorded(), both)
        again = system_request(replay=execution_pb2.Replay(request_id="first"))
        with pytest.raises(PermissionDenied, match="scope 'read'") as caught:
            await ask_as(stub, "Execute", again, execute_only)
        assert caught.value.code is ErrorCode.AUTH_DENIED
        assert (await ask_as(stub, "Execute", again, both)).content == "hello"
        other = (await key_of(stub, "beta")).text
        with pytest.raises(NotFound):
            await ask_as(stub, "Execute", again, other)


async def test_a_running_execution_is_not_replayed(tmp_path):
    inference = ScriptedInference(None)
    async with orchestrator(tmp_path, scripted_services(inference=inference)) as stub:
        running = asyncio.create_task(execute(stub, recorded()))
        await inference.waiting.wait()
        with pytest.raises(PreconditionFailed, match="has not ended"):
            await replay(stub)
        await stored(stub, "first", lambda events: any(event.HasField("inference_start") for event in events))
        assert names(await steps_of(stub)) == ["prepare"]
        await call_unary("orchestrator", stub.CancelExecution, pb.CancelExecutionRequest(request_id="first"))
        assert (await running).HasField("error")


async def test_a_call_that_was_approved_with_other_arguments_is_not_made_again(tmp_path):
    inference, tools = two_rounds(more=["Midday."]), ScriptedTools(safety=ToolSafety.EXTERNAL)
    services = scripted_services(inference=inference, tools=tools, policy="clock=ask")
    async with orchestrator(tmp_path, services) as stub:
        running = asyncio.create_task(execute(stub, recorded(tools=["clock"])))
        await waiting(stub, request_id="first")
        approved = pb.ResolveApprovalRequest(
            request_id="first",
            tool_call_id="c1",
            decision=approval_pb2.APPROVAL_DECISION_APPROVED,
            arguments_json='{"zone": "CET"}',
        )
        await call_unary("orchestrator", stub.ResolveApproval, approved)
        await running
        again = await replay(stub, from_step="infer-2")
        assert again.content == "Midday."
        (made,) = again.tool_calls_made
        assert (made.arguments_json, made.result, made.is_error) == ('{"zone": "CET"}', "noon", False)
        assert len(tools.calls) == 1


async def test_a_recorded_call_is_not_lost_when_its_replay_is_interrupted(tmp_path):
    inference, tools = two_rounds(), ScriptedTools()
    async with orchestrator(tmp_path, scripted_services(inference=inference, tools=tools)) as stub:
        await execute(stub, recorded())
    again = recorded(replay=execution_pb2.Replay(request_id="first", from_step="infer-2"))
    again.request_id = "again"
    stuck = ScriptedInference(None)
    left = await crash(tmp_path, scripted_services(inference=stuck, tools=tools), again, stuck.waiting)
    with closing(sqlite3.connect(left / "journal.sqlite3")) as db, db:
        for position, entry in db.execute("SELECT position, entry FROM entries WHERE request_id = 'again'").fetchall():
            if json.loads(entry)[0] in ("CallEnded.2", "ToolsRan"):
                db.execute("DELETE FROM entries WHERE request_id = 'again' AND position = ?", (position,))
    async with orchestrator(left, scripted_services(inference=ScriptedInference(answer("Noon.")), tools=tools)) as stub:
        response = await execute(stub, again)
        assert [(made.result, made.is_error) for made in response.tool_calls_made] == [("noon", False)]
        assert len(tools.calls) == 1


async def test_a_changed_result_that_the_record_has_read_is_refused(tmp_path):
    inference = ScriptedInference(
        seeded("", 1, [CALL]), seeded("", 2, [replace(CALL, id="c2", arguments_json="{}")]), seeded("Noon.", 3)
    )
    async with orchestrator(tmp_path, scripted_services(inference=inference)) as stub:
        await execute(stub, recorded())
        changed = [execution_pb2.ChangedResult(tool_call_id="c1", result="midnight")]
        with pytest.raises(InvalidRequest, match="what follows from its step 'tools-1'"):
            await replay(stub, tool_results=changed, from_step="infer-3")
        assert (await replay(stub, tool_results=changed, from_step="infer-2")).content == "Noon."


async def test_guards_read_a_changed_request_and_the_results_that_are_given_again(tmp_path):
    async with orchestrator(tmp_path, scripted_services(inference=two_rounds())) as stub:
        await execute(stub, recorded())
    inference = ScriptedInference(answer("Noon."))
    changed = [execution_pb2.ChangedResult(tool_call_id="c1", result=f"the key is {KEY}")]
    secrets = guard("secrets", "input", "tool_results", action="redact")
    async with guarded_orchestrator(tmp_path, secrets, inference=inference) as stub:
        changes = {"prompt": execution_pb2.SystemPrompt(text=f"Never say {KEY}.")}
        again = await replay(stub, changes=changes, tool_results=changed)
        asked = " ".join(message.content for message in inference.commands[0].messages)
        assert "Never say" in asked
        assert "the key is" in asked
        assert KEY not in asked + str(again)
        assert {warning.code for warning in again.warnings} == {"guard_redacted"}
