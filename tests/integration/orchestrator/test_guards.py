"""Guards over real sockets, with a real journal and in real worker processes: what passes, and what does not."""

import asyncio
import json
import sys
from dataclasses import replace

import pytest

from pagantic.common.v1 import error_pb2, message_pb2
from pagantic.constraint.v1 import contract_pb2
from pagantic.context.v1 import policy_pb2
from pagantic.orchestrator.v1 import approval_pb2, decision_pb2, event_pb2, execution_pb2, plan_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.domain.chunks import Chunk
from pagantic_common.domain.errors import (
    ErrorCode,
    InvalidRequest,
    NotFound,
    PermissionDenied,
    Unavailable,
    Unsupported,
)
from pagantic_common.domain.messages import ToolCall
from pagantic_common.rpc.call import call_stream, call_unary
from services.orchestrator.adapters.guards.process_guards import open_guards
from services.orchestrator.core.model.response import TokenLogprob
from services.orchestrator.core.plans.planning import Planner
from tests.integration.orchestrator.test_approvals import resolve, waiting
from tests.integration.orchestrator.test_plans import TOOL, plan, step
from tests.support.guarded_app import KEY, SpokenInference, guard, guarded, guarded_orchestrator, offer_own_guard, words
from tests.support.orchestrator_app import crash, ended, execute, orchestrator, system_request, timeline
from tests.support.scripted_services import ScriptedContext, ScriptedInference, ScriptedTools, answer

BLOCKED = error_pb2.ERROR_CODE_GUARD_BLOCKED
REDACT = {"action": "redact"}
LONG = "word " * 60


def acts(events):
    """Return what guards did, as (guard, stage, outcome, findings)."""
    found = [event.guard_acted for event in events if event.HasField("guard_acted")]
    return [
        (
            one.guard,
            event_pb2.GuardStage.Name(one.stage).removeprefix("GUARD_STAGE_"),
            event_pb2.GuardOutcome.Name(one.outcome).removeprefix("GUARD_OUTCOME_"),
            one.finding_count,
        )
        for one in found
    ]


async def streamed(stub, request):
    return [event async for event in call_stream("orchestrator", stub.ExecuteStream, request, 20)]


def texts_in(events):
    """Return the text and the reasoning that streamed, after each event that has some."""
    content, reasoning, seen = "", "", []
    for event in events:
        content += event.content_delta.text
        reasoning += event.reasoning_delta.text
        seen.append(content + reasoning)
    return seen


# ---- input ----------------------------------------------------------------------------------------------------------


async def test_a_blocked_input_reaches_no_model_and_no_conversation(tmp_path):
    inference = ScriptedInference()
    async with guarded_orchestrator(tmp_path, guard("secrets", "input"), inference=inference) as stub:
        response = await execute(stub, system_request(f"my key is {KEY}", session_id="s", request_id="r"))
        events = await timeline(stub, "r")
        with pytest.raises(NotFound):
            await call_unary("orchestrator", stub.GetSession, pb.GetSessionRequest(session_id="s"))
    assert response.error.code == BLOCKED
    assert response.error.category == error_pb2.ERROR_CATEGORY_ACCESS_FAILURE
    assert json.loads(response.error.details_json) == {"guard": "secrets", "stage": "input", "outcome": "blocked"}
    assert inference.commands == []
    assert acts(events) == [("secrets", "INPUT", "BLOCKED", 1)]
    assert KEY not in str(events) + str(response)


async def test_a_redacted_input_is_what_the_model_reads_and_the_conversation_keeps(tmp_path):
    inference = ScriptedInference()
    async with guarded_orchestrator(tmp_path, guard("secrets", "input", **REDACT), inference=inference) as stub:
        request = system_request(f"my key is {KEY}", session_id="s", request_id="r")
        request.prompt.text = f"The key of the shop is {KEY}."
        response = await execute(stub, request)
        events = await timeline(stub, "r")
        await execute(stub, system_request("and?", session_id="s"))
    assert response.content == "hello"
    assert [(one.code, one.message) for one in response.warnings] == [
        ("guard_redacted", "guard 'secrets' redacted the input: 2 findings")
    ]
    assert acts(events) == [("secrets", "INPUT", "REDACTED", 2)]
    for command in inference.commands:
        assert KEY not in str(command.messages)
        assert "[redacted: AWS_ACCESS_KEY]" in str(command.messages)


async def test_guards_read_in_order_and_the_next_one_reads_what_is_left(tmp_path):
    first = guard("topics", "input", options={"words": ["heist"]}, **REDACT)
    second = guard("length", "input", options={"max_chars": 20})
    async with guarded_orchestrator(tmp_path, second, first) as stub:
        blocked = await execute(stub, system_request("a heist " * 3, request_id="r"))
        assert acts(await timeline(stub, "r")) == [("length", "INPUT", "BLOCKED", 1)]
    assert blocked.error.code == BLOCKED


async def test_results_of_the_callers_tools_are_read_as_results(tmp_path):
    async with guarded_orchestrator(tmp_path, words("tool_results")) as stub:
        request = system_request("A heist?")
        assert not (await execute(stub, request)).HasField("error")
        call = message_pb2.ToolCall(id="c1", name="t", arguments_json="{}")
        request.messages.add(role=message_pb2.ROLE_ASSISTANT, tool_calls=[call])
        request.messages.add(role=message_pb2.ROLE_TOOL, content="a heist", tool_call_id="c1", name="t")
        response = await execute(stub, request)
    assert json.loads(response.error.details_json)["stage"] == "tool_results"


async def test_a_judge_blocks_what_the_model_says_is_likely(tmp_path):
    inference = ScriptedInference()
    inference.label_logprobs = [(-0.1, -3.0)]
    async with guarded_orchestrator(tmp_path, guard("judge", "input"), inference=inference) as stub:
        blocked = await execute(stub, system_request("Forget it all.", request_id="r"))
        inference.label_logprobs = [(-3.0, -0.1)]
        passed = await execute(stub, system_request("Good morning."))
        events = await timeline(stub, "r")
    assert blocked.error.code == BLOCKED
    assert blocked.token_usage.prompt_tokens == 10
    assert passed.content == "hello"
    assert passed.token_usage.prompt_tokens == 20
    assert "Forget it all." in inference.commands[0].messages[-1].content
    assert [event.inference_start.purpose for event in events if event.HasField("inference_start")] == [
        event_pb2.INFERENCE_PURPOSE_JUDGE
    ]


async def test_a_plan_is_not_made_outside_an_execution(tmp_path):
    request = pb.CreatePlanRequest(request=system_request("x", mode=execution_pb2.MODE_PLAN))
    async with guarded(tmp_path, words("input")) as services:
        planning = replace(services, planner=Planner.MODEL)
        async with orchestrator(tmp_path, planning) as stub:
            with pytest.raises(Unsupported, match="send the request to Execute"):
                await call_unary("orchestrator", stub.CreatePlan, request)


# ---- from outside of executions -------------------------------------------------------------------------------------


def said(text, role=message_pb2.ROLE_USER, **fields):
    return message_pb2.Message(role=role, content=text, **fields)


async def update(stub, **fields):
    request = pb.UpdateSessionRequest(session_id="s", **fields)
    return (await call_unary("orchestrator", stub.UpdateSession, request)).session


async def stored_session(stub):
    return (await call_unary("orchestrator", stub.GetSession, pb.GetSessionRequest(session_id="s"))).session


CALLED = message_pb2.ToolCall(id="c1", name="clock", arguments_json="{}")


@pytest.mark.parametrize(
    ("stage", "messages"),
    [
        ("input", [said("a heist")]),
        ("input", [said("fine"), said("a heist", message_pb2.ROLE_ASSISTANT)]),
        (
            "tool_results",
            [
                said("fine"),
                said("", message_pb2.ROLE_ASSISTANT, tool_calls=[CALLED]),
                said("a heist", message_pb2.ROLE_TOOL, tool_call_id="c1", name="clock"),
            ],
        ),
    ],
)
async def test_appended_messages_are_read_like_a_request(tmp_path, stage, messages):
    async with guarded_orchestrator(tmp_path, words(stage)) as stub:
        with pytest.raises(PermissionDenied, match="guard 'topics' blocks") as blocked:
            await update(stub, appended_messages=messages)
        with pytest.raises(NotFound):
            await stored_session(stub)
        await update(stub, appended_messages=[said("a picnic")])
        position = {0: said("a heist")} if stage == "input" else {}
        if position:
            with pytest.raises(PermissionDenied):
                await update(stub, replaced_messages=position)
        assert [message.content for message in (await stored_session(stub)).messages] == ["a picnic"]
    assert blocked.value.code is ErrorCode.GUARD_BLOCKED
    assert blocked.value.failure.details["stage"] == stage


async def test_appended_messages_are_redacted_and_turns_see_what_is_left(tmp_path):
    inference = ScriptedInference()
    async with guarded_orchestrator(tmp_path, guard("secrets", "input", **REDACT), inference=inference) as stub:
        session = await update(
            stub, appended_messages=[said(f"my key is {KEY}"), said("ok", message_pb2.ROLE_ASSISTANT)]
        )
        assert [message.content for message in session.messages] in ([], ["my key is [redacted: AWS_ACCESS_KEY]", "ok"])
        await execute(stub, system_request("which?", session_id="s"))
    assert KEY not in str(inference.commands[0].messages)
    assert "[redacted: AWS_ACCESS_KEY]" in str(inference.commands[0].messages)


async def test_appended_messages_are_judged_and_the_caller_pays(tmp_path):
    inference = ScriptedInference()
    inference.label_logprobs = [(-0.1, -3.0)]
    async with guarded_orchestrator(tmp_path, guard("judge", "input"), inference=inference) as stub:
        with pytest.raises(PermissionDenied):
            await update(stub, appended_messages=[said("Forget it all.")])
        (total,) = (await call_unary("orchestrator", stub.GetUsage, pb.GetUsageRequest())).totals
        inference.label_logprobs = Unavailable("away")
        with pytest.raises(PermissionDenied, match="could not check") as failed:
            await update(stub, appended_messages=[said("Forget it all.")])
    assert total.prompt_tokens == 10
    assert failed.value.failure.retryable


async def test_values_of_a_session_are_read(tmp_path):
    rules = [guard("secrets", "input", **REDACT), words("input")]
    async with guarded_orchestrator(tmp_path, *rules) as stub:
        with pytest.raises(PermissionDenied):
            await update(stub, state_json={"plan": '{"what": ["a heist"]}'})
        await update(stub, state_json={"note": f'{{"key":"see\\n{KEY}","n":[1,true,null]}}', "same": '{ "a" : 1 }'})
        state = (await stored_session(stub)).state_json
    assert json.loads(state["note"]) == {"key": "see\n[redacted: AWS_ACCESS_KEY]", "n": [1, True, None]}
    assert state["same"] == '{ "a" : 1 }'


async def test_arguments_that_an_approver_changed_are_read_and_the_call_still_waits(tmp_path):
    inference, tools = calling('{"note":"a picnic"}'), ScriptedTools()
    ask = approval_pb2.ToolRule(tool="clock", action=approval_pb2.TOOL_ACTION_ASK)
    rules = [words("tool_arguments"), guard("secrets", "tool_arguments", **REDACT)]
    async with guarded_orchestrator(tmp_path, *rules, inference=inference, tools=tools) as stub:
        running = asyncio.create_task(execute(stub, system_request(request_id="r", tool_rules=[ask])))
        await waiting(stub)
        with pytest.raises(PermissionDenied, match="blocks the arguments of a tool call") as blocked:
            await resolve(stub, arguments_json='{"note":"a h\\u0065ist"}')
        (still,) = await waiting(stub)
        assert not still.HasField("resolution")
        for _ in range(2):  # a repeated decision is the same decision
            await resolve(stub, arguments_json=f'{{"note":"{KEY}"}}')
        response = await running
    assert blocked.value.code is ErrorCode.GUARD_BLOCKED
    (call,) = tools.calls
    assert json.loads(call.arguments_json) == {"note": "[redacted: AWS_ACCESS_KEY]"}
    assert response.content == "done"


SCHEMA = '{"type":"object","properties":{"when":{"type":"string","description":"of the heist"}}}'
QUESTION = decision_pb2.Question(name="q", instructions="Is it a heist?", predicate=decision_pb2.PredicateQuestion())
CHOICE = decision_pb2.Question(
    name="q",
    instructions="Which?",
    choice=decision_pb2.ChoiceQuestion(
        options=[decision_pb2.Option(text="picnic"), decision_pb2.Option(text="b", description="a heist")]
    ),
)


@pytest.mark.parametrize(
    "fields",
    [
        {"client_tools": [message_pb2.ToolDefinition(name="t", description="Plans a heist.")]},
        {"client_tools": [message_pb2.ToolDefinition(name="t", description="Plans.", parameters_json=SCHEMA)]},
        {"mode": execution_pb2.MODE_STRUCTURED, "output": contract_pb2.OutputContract(schema_json=SCHEMA)},
        {"semantic_intent": "The answer is about a heist."},
        {"mode": execution_pb2.MODE_DECIDE, "decisions": decision_pb2.Decisions(questions=[QUESTION])},
        {"mode": execution_pb2.MODE_DECIDE, "decisions": decision_pb2.Decisions(questions=[CHOICE])},
    ],
)
async def test_descriptions_schemas_and_questions_are_read(tmp_path, fields):
    inference = ScriptedInference()
    async with guarded_orchestrator(tmp_path, words("input"), inference=inference) as stub:
        response = await execute(stub, system_request("hi", **fields))
    assert response.error.code == BLOCKED
    assert inference.commands == []


# ---- tools ----------------------------------------------------------------------------------------------------------


def calling(arguments):
    return ScriptedInference(answer("", calls=[ToolCall("c1", "clock", arguments)]), answer("done"))


async def test_blocked_arguments_reach_no_tool_and_the_model_reads_why(tmp_path):
    inference, tools = calling(f'{{"note":"see\\n{KEY}"}}'), ScriptedTools()
    async with guarded_orchestrator(
        tmp_path, guard("secrets", "tool_arguments"), inference=inference, tools=tools
    ) as stub:
        response = await execute(stub, system_request(request_id="r"))
        events = await timeline(stub, "r")
    assert tools.calls == []
    (record,) = response.tool_calls_made
    assert (record.is_error, record.error_code, record.arguments_json) == (True, BLOCKED, "{}")
    told = inference.commands[1].messages[-1].content
    assert told == "tool 'clock' was not run: guard 'secrets' blocks the arguments of a tool call"
    assert response.content == "done"
    assert acts(events) == [("secrets", "TOOL_ARGUMENTS", "BLOCKED", 1)]
    assert KEY not in str(events) + str(response) + str(inference.commands[1].messages)


async def test_redacted_arguments_are_what_the_tool_gets_and_stay_json(tmp_path):
    inference, tools = calling(f'{{"note":"see\\n{KEY}","n":[1,true,null]}}'), ScriptedTools()
    rule = guard("secrets", "tool_arguments", **REDACT)
    async with guarded_orchestrator(tmp_path, rule, inference=inference, tools=tools) as stub:
        response = await execute(stub, system_request())
    (call,) = tools.calls
    assert json.loads(call.arguments_json) == {"note": "see\n[redacted: AWS_ACCESS_KEY]", "n": [1, True, None]}
    assert [one.code for one in response.warnings] == ["guard_redacted"]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, "the result of 'clock' is withheld: guard 'topics' blocks the result of a tool"),
        (REDACT, "a [redacted: TOPIC] at noon"),
    ],
)
async def test_results_are_read_before_the_model_reads_them(tmp_path, fields, told):
    inference, tools = calling("{}"), ScriptedTools(result="a heist at noon")
    async with guarded_orchestrator(
        tmp_path, words("tool_results", **fields), inference=inference, tools=tools
    ) as stub:
        events = await streamed(stub, system_request(request_id="r"))
    assert inference.commands[1].messages[-1].content == told
    (record,) = events[-1].completed.response.tool_calls_made
    assert (record.result, record.is_error) == (told, not fields)
    assert "heist" not in str(events)


async def test_a_call_of_the_callers_tool_is_held_until_it_is_read(tmp_path):
    opened = message_pb2.ToolDefinition(name="open", description="Opens.", parameters_json='{"type":"object"}')
    inference = ScriptedInference(answer("", calls=[ToolCall("c1", "open", f'{{"key":"{KEY}"}}')]))
    async with guarded_orchestrator(tmp_path, guard("secrets", "output"), inference=inference) as stub:
        events = await streamed(stub, system_request(client_tools=[opened]))
    assert not any(event.HasField("tool_call_delta") for event in events)
    response = events[-1].completed.response
    assert (response.error.code, list(response.tool_calls)) == (BLOCKED, [])
    assert KEY not in str(events)


async def test_a_plans_tool_step_does_not_run_with_blocked_arguments(tmp_path):
    tools = ScriptedTools()
    work = plan(step("ask", "tool", parameters={"tool": "clock"}, input=plan_pb2.StepInput(text='{"note":"a heist"}')))
    async with guarded_orchestrator(tmp_path, words("tool_arguments"), tools=tools) as stub:
        response = await execute(stub, work)
    assert response.error.code == BLOCKED
    assert tools.calls == []


async def test_a_plans_infer_step_does_not_ask_with_blocked_words(tmp_path):
    inference = ScriptedInference()
    work = plan(TOOL, step("think", parameters={"prompt": "Plan a heist."}))
    async with guarded_orchestrator(tmp_path, words("input"), inference=inference) as stub:
        response = await execute(stub, work)
    assert response.error.code == BLOCKED
    assert inference.commands == []


async def test_a_blocked_chunk_is_left_out_of_the_context(tmp_path):
    chunks = (Chunk("1", "of a heist", "a"), Chunk("2", "of a picnic", "b"))
    inference = ScriptedInference()
    rule = words("tool_results")
    async with guarded_orchestrator(tmp_path, rule, inference=inference, context=ScriptedContext(*chunks)) as stub:
        context = policy_pb2.ContextPolicy(collection="c")
        response = await execute(stub, system_request("Which?", context=context))
    asked = str(inference.commands[0].messages)
    assert "picnic" in asked
    assert "heist" not in asked
    assert [one.code for one in response.warnings] == ["guard_withheld"]


# ---- output ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_no_character_that_a_guard_forbids_is_streamed(tmp_path, size):
    inference = SpokenInference(f"{LONG}the key is {KEY} {LONG}", size)
    async with guarded_orchestrator(tmp_path, guard("secrets", "output"), inference=inference) as stub:
        events = await streamed(stub, system_request(request_id="r"))
        followed = pb.FollowExecutionRequest(request_id="r")
        events += [event async for event in call_stream("orchestrator", stub.FollowExecution, followed, 10)]
    assert "AKIA" not in str(events)
    response = events[-1].completed.response
    assert (response.error.code, json.loads(response.error.details_json)["stage"]) == (BLOCKED, "output")


@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_a_redacted_answer_streams_as_it_is_delivered(tmp_path, size):
    text = f"{LONG}the key is {KEY}. {LONG}"
    logprobs = (TokenLogprob(1, KEY, -0.1),)
    inference = SpokenInference(text, size, reasoning=f"I know {KEY}.", logprobs=logprobs)
    async with guarded_orchestrator(tmp_path, guard("secrets", "output", **REDACT), inference=inference) as stub:
        request = system_request(request_id="r", session_id="s")
        request.hints.top_logprobs = 0
        events = await streamed(stub, request)
    response = events[-1].completed.response
    assert response.content == text.replace(KEY, "[redacted: AWS_ACCESS_KEY]")
    assert "".join(event.content_delta.text for event in events) == response.content
    assert "".join(event.reasoning_delta.text for event in events) == response.reasoning
    assert len(response.logprobs) == 0
    assert "AKIA" not in str(events)
    assert acts(events) == [("secrets", "OUTPUT", "REDACTED", 1)] * 2
    if size < len(text):
        assert sum(event.HasField("content_delta") for event in events) > 2


async def test_an_answer_that_is_too_long_stops_the_model(tmp_path):
    inference = SpokenInference("word " * 2000)
    rule = guard("length", "output", options={"max_chars": 50})
    async with guarded_orchestrator(tmp_path, rule, inference=inference) as stub:
        events = await streamed(stub, system_request())
    response = events[-1].completed.response
    assert response.error.code == BLOCKED
    assert ("word " * 10).startswith(texts_in(events)[-1])
    assert response.content == texts_in(events)[-1]
    assert inference.said < 40


async def test_a_judged_answer_is_held_until_it_is_judged(tmp_path):
    inference = SpokenInference(LONG)
    inference.label_logprobs = [(-3.0, -0.1)]
    rule = guard("topics", "output", options={"topics": ["weapons"]})
    async with guarded_orchestrator(tmp_path, rule, inference=inference) as stub:
        passed = await streamed(stub, system_request())
        inference.label_logprobs = [(-0.1, -3.0)]
        blocked = await streamed(stub, system_request())
    assert [event.content_delta.text for event in passed if event.HasField("content_delta")] == [LONG]
    assert passed[-1].completed.response.token_usage.prompt_tokens == 20
    assert not any(event.HasField("content_delta") for event in blocked)
    response = blocked[-1].completed.response
    assert (response.error.code, response.content) == (BLOCKED, "")
    assert response.token_usage.prompt_tokens == 20


async def test_a_candidate_with_a_forbidden_word_abstains(tmp_path):
    inference = ScriptedInference(answer('{"a":"heist"}'), answer('{"a":"x"}'), answer('{"a":"x"}'))
    async with guarded_orchestrator(tmp_path, words("output"), inference=inference) as stub:
        request = system_request(mode=execution_pb2.MODE_REDUNDANT)
        request.output.schema_json = '{"type":"object"}'
        response = await execute(stub, request)
    assert response.structured_output_json == '{"a":"x"}'
    assert response.candidates[0].error.code == BLOCKED
    assert "heist" not in str(response)


# ---- failures -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["break", "stall"])
async def test_a_guard_that_fails_or_is_late_is_closed_or_open_and_says_so(tmp_path, monkeypatch, word):
    offer_own_guard(tmp_path, monkeypatch)
    closed = guard("own", "input", name="closed", timeout_s=0.3)
    opened = guard("own", "input", name="opened", timeout_s=0.3, on_failure="open")
    for rule, is_open in ((closed, False), (opened, True)):
        folder = tmp_path / rule["name"]
        folder.mkdir()
        async with guarded(folder, rule) as services, orchestrator(folder, services) as stub:
            response = await execute(stub, system_request(word, request_id="r"))
            events = await timeline(stub, "r")
        assert acts(events) == [(rule["name"], "INPUT", "FAILED_OPEN" if is_open else "FAILED_CLOSED", 0)]
        if is_open:
            assert [one.code for one in response.warnings] == ["guard_failed"]
            assert response.content == "hello"
        else:
            assert (response.error.code, response.error.retryable) == (BLOCKED, True)


@pytest.mark.skipif(sys.platform != "linux", reason="Landlock is of Linux")
async def test_a_guard_reads_files_of_its_own_where_the_file_permits_it(tmp_path, monkeypatch):
    offer_own_guard(tmp_path, monkeypatch)
    model = tmp_path / "models" / "weights"
    model.parent.mkdir()
    model.touch()
    rule = guard("own", "input", options={"file": str(model)})
    async with guarded(tmp_path, rule, folders=[model.parent]):
        pass
    with pytest.raises(InvalidRequest, match=r"cannot read '.*/models/weights': name its folder in `folders`"):
        async with guarded(tmp_path, rule):
            pass


async def test_an_open_guard_that_fails_lets_the_held_text_out(tmp_path, monkeypatch):
    offer_own_guard(tmp_path, monkeypatch)
    rule = guard("own", "output", on_failure="open")
    text = f"{LONG}break {LONG}"
    async with guarded_orchestrator(tmp_path, rule, inference=SpokenInference(text)) as stub:
        events = await streamed(stub, system_request())
    assert "".join(event.content_delta.text for event in events) == text
    assert acts(events) == [("own", "OUTPUT", "FAILED_OPEN", 0)]


async def test_a_text_that_stalls_a_guard_costs_only_its_own_request(tmp_path, monkeypatch):
    offer_own_guard(tmp_path, monkeypatch)
    rule = guard("own", "input", timeout_s=3)
    async with guarded_orchestrator(tmp_path, rule, workers=2) as stub:
        stalled = asyncio.create_task(execute(stub, system_request("stall")))
        await asyncio.sleep(0)
        passed = [await execute(stub, system_request("fine")) for _ in range(5)]
        assert not stalled.done()
        assert [one.content for one in passed] == ["hello"] * 5
        assert (await stalled).error.code == BLOCKED


async def test_a_resumed_execution_asks_no_guard_again(tmp_path):
    inference = ScriptedInference(None)
    inference.label_logprobs = [(-3.0, -0.1)]
    judge = guard("judge", "input", name="judge")
    async with guarded(tmp_path, judge, guard("secrets", "input", **REDACT), inference=inference) as services:
        request = system_request(f"key {KEY}", request_id="r", session_id="s")
        left = await crash(tmp_path, services, request, inference.waiting, ["guard.acted"])
    other = ScriptedInference()
    other.label_logprobs = [(-0.1, -3.0)]  # would block it now
    async with guarded(tmp_path, judge, inference=other) as services, orchestrator(left, services) as stub:
        await call_unary("orchestrator", stub.ResumeExecution, pb.ResumeExecutionRequest(request_id="r"))
        response = (await ended(stub, "r")).response
    assert response.content == "hello"
    assert [type(command).__name__ for command in other.commands] == ["Infer"]
    assert KEY not in str(other.commands[0].messages)
    assert [one.code for one in response.warnings] == ["guard_redacted"]


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (guard("nobody", "input"), "guard 'nobody': plug-in 'nobody' is not offered by an installed package"),
        (guard("length", "input"), "guard 'length': plug-in 'length' does not take its options: option 'max_chars'"),
        (guard("judge", "input", action="redact"), "guard 'judge' judges whole texts: its action must be block"),
    ],
)
async def test_wrong_guards_stop_the_start_with_one_line(tmp_path, rule, message):
    path = tmp_path / "guards.json"
    path.write_text(json.dumps({"guards": [rule], "workers": 1}))
    with pytest.raises(InvalidRequest, match=message) as refused:
        async with open_guards(path):
            raise AssertionError("it started")
    assert "\n" not in str(refused.value)


async def test_a_judge_that_cannot_be_asked_is_closed(tmp_path):
    inference = ScriptedInference()
    inference.label_logprobs = Unavailable("away")
    async with guarded_orchestrator(tmp_path, guard("judge", "input"), inference=inference) as stub:
        response = await execute(stub, system_request())
    assert (response.error.code, response.error.retryable) == (BLOCKED, True)
