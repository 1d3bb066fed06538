"""Requests that bring no plan."""

import asyncio
import json
from dataclasses import replace

import pytest

from pagantic.common.v1 import error_pb2
from pagantic.constraint.v1 import contract_pb2
from pagantic.context.v1 import policy_pb2
from pagantic.orchestrator.v1 import execution_pb2, plan_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.domain.errors import (
    DeadlineExceeded,
    ErrorCode,
    Internal,
    InvalidRequest,
    Overloaded,
    PreconditionFailed,
    Unavailable,
)
from pagantic_common.rpc.call import call_unary
from services.orchestrator.adapters.operator_files import load_custom_steps
from services.orchestrator.core.model.plan import PlanPolicy
from services.orchestrator.core.plans.planning import Planner
from tests.support.orchestrator_app import execute, orchestrator, system_request, timeline
from tests.support.scripted_services import ScriptedInference, answer, scripted_services

STEPS = [{"name": "draft", "prompt": "Write."}, {"name": "draft", "prompt": "Mend."}]
MADE = json.dumps({"rationale": "two are enough", "steps": STEPS})


def request(**fields):
    return system_request("What now?", mode=execution_pb2.MODE_PLAN, request_id="p", **fields)


async def create_plan(stub, asked):
    return (await call_unary("orchestrator", stub.CreatePlan, pb.CreatePlanRequest(request=asked))).plan


async def test_the_static_planner_answers_from_context(tmp_path):
    context = policy_pb2.ContextPolicy(collection="docs", rerank=policy_pb2.RerankPolicy(top_k=2), retriever=1)
    async with orchestrator(tmp_path) as stub:
        response = await execute(stub, request(context=context))
        assert [result.name for result in response.step_results] == ["retrieve", "rerank", "answer"]
        assert response.content == "hello"
        made = await create_plan(stub, request(context=context))
        assert [step.kind for step in made.steps] == ["retrieve", "rerank", "infer"]
        assert (made.trace.planner_id, made.trace.step_count) == ("static", 3)
        again = system_request("What now?", mode=execution_pb2.MODE_PLAN, plan=made)
        assert [result.name for result in (await execute(stub, again)).step_results] == ["retrieve", "rerank", "answer"]


async def test_the_model_planner_asks_the_model(tmp_path):
    inference = ScriptedInference(answer(MADE), answer("a draft"), answer("mended"), answer(MADE))
    services = replace(scripted_services(inference=inference), planner=Planner.MODEL)
    async with orchestrator(tmp_path, services) as stub:
        response = await execute(stub, request())
        assert [result.name for result in response.step_results] == ["draft", "draft-2"]
        assert response.content == "mended"
        assert response.token_usage.output_tokens == 9
        assert inference.commands[0].engine_text == "engine text"
        assert inference.commands[2].messages[-1].content == "a draft\n\nMend."
        reasons = [event.transition.reason for event in await timeline(stub, "p") if event.HasField("transition")]
        assert "2 steps, by model" in reasons
        made = await create_plan(stub, request())
        assert (len(made.steps), made.trace.rationale) == (2, "two are enough")


async def test_a_planners_answer_that_is_no_plan_fails_the_request(tmp_path):
    services = replace(scripted_services(inference=ScriptedInference(answer("{"))), planner=Planner.MODEL)
    async with orchestrator(tmp_path, services) as stub:
        response = await execute(stub, request())
        assert response.error.code == error_pb2.ERROR_CODE_INFERENCE_MALFORMED_RESPONSE


async def test_a_plan_is_checked_before_it_is_given(tmp_path):
    async with orchestrator(tmp_path) as stub:
        with pytest.raises(PreconditionFailed) as caught:
            await create_plan(stub, request(plan=plan_pb2.ExecutionPlan(steps=[plan_pb2.Step(name="a", kind="x")])))
        assert caught.value.code is ErrorCode.ORCHESTRATION_PLAN_REJECTED
        with pytest.raises(InvalidRequest, match="mode CHAT has no plan"):
            await create_plan(stub, system_request())


async def test_a_planner_that_cannot_ask_its_model_names_what_is_missing(tmp_path):
    gone = Unavailable("the inference service cannot be reached", retry_after_s=1.0)
    services = replace(scripted_services(inference=ScriptedInference(gone)), planner=Planner.MODEL)
    async with orchestrator(tmp_path, services) as stub:
        with pytest.raises(Unavailable, match="inference service") as caught:
            await create_plan(stub, request())
    assert caught.value.code is ErrorCode.ORCHESTRATION_DEPENDENCY_UNAVAILABLE
    assert caught.value.retry_after_s == 1.0


async def test_a_models_plan_has_tools_branches_retrieval_and_an_answer(tmp_path):
    steps = [
        {"kind": "tool", "name": "time", "tool": "clock", "arguments": {"zone": "UTC"}},
        {"kind": "retrieve", "name": "look", "query": "opening hours"},
        {"kind": "infer", "name": "pros", "prompt": "Say what is for it.", "after": ["time", "nobody"]},
        {"kind": "infer", "name": "cons", "prompt": "Say what is against it.", "after": []},
        {"kind": "tool", "name": "time", "tool": "clock", "arguments": {}},
    ]
    made = json.dumps({"rationale": "both sides", "steps": steps})
    inference = ScriptedInference(answer(made), answer("for"), answer("against"), answer("so"))
    services = replace(scripted_services(inference=inference), planner=Planner.MODEL)
    async with orchestrator(tmp_path, services) as stub:
        response = await execute(stub, request(context=policy_pb2.ContextPolicy(collection="docs")))
    needs = {step.name: list(step.depends_on) for step in response.plan.steps}
    assert needs == {
        "retrieve": [],
        "time": [],
        "look": [],
        "pros": ["time"],
        "cons": [],
        "time-2": [],
        "answer": ["retrieve", "look", "pros", "cons", "time-2"],
    }
    assert response.content == "so"
    assert [record.arguments_json for record in response.tool_calls_made] == ['{"zone":"UTC"}', "{}"]
    assert services.context.retrieved[0] == "opening hours"
    assert "clock: Tells the time." in inference.commands[0].messages[0].content


async def test_a_models_plan_validates_the_output_that_is_asked_for(tmp_path):
    steps = [{"kind": "infer", "name": "draft", "prompt": "Write."}, {"kind": "validate", "name": "check"}]
    made = json.dumps({"rationale": "checked", "steps": steps})
    services = replace(
        scripted_services(inference=ScriptedInference(answer(made), answer("{}"))), planner=Planner.MODEL
    )
    contract = contract_pb2.OutputContract(schema_json='{"type":"object"}')
    async with orchestrator(tmp_path, services) as stub:
        response = await execute(stub, request(output=contract))
    assert [result.kind for result in response.step_results] == ["infer", "validate"]
    assert response.structured_output_json == "{}"


async def shout(text, parameters):
    return text.upper() + parameters.get("end", "")


async def test_a_registered_kind_is_a_step_like_any_other(tmp_path):
    steps = [
        plan_pb2.Step(name="say", kind="infer"),
        plan_pb2.Step(name="loud", kind="shout", parameters_json='{"end": "!"}'),
    ]
    services = replace(scripted_services(), custom_steps={"shout": shout})
    bounds = PlanPolicy(custom_kinds=frozenset({"shout"}))
    async with orchestrator(tmp_path, services, plan_bounds=bounds) as stub:
        response = await execute(stub, request(plan=plan_pb2.ExecutionPlan(steps=steps)))
    assert response.content == "HELLO!"
    async with orchestrator(tmp_path / "other", services) as stub:
        response = await execute(stub, request(plan=plan_pb2.ExecutionPlan(steps=steps)))
    assert response.error.code == error_pb2.ERROR_CODE_ORCHESTRATION_PLAN_REJECTED


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        ("tests.no_such_module:shout", "cannot be imported: .*; the current folder is not searched"),
        ("tests.integration.orchestrator.test_planners:nothing", "cannot be imported"),
        ("json:dumps", "not a coroutine function"),
    ],
)
def test_a_step_kind_that_cannot_be_loaded_is_refused_at_start(path, wrong):
    with pytest.raises(InvalidRequest, match=wrong):
        load_custom_steps({"shout": path})
    with pytest.raises(InvalidRequest, match="a built-in kind"):
        load_custom_steps({"infer": "json:dumps"})


async def test_what_a_planner_uses_counts_whether_its_plan_is_taken_or_not(tmp_path):
    inference = ScriptedInference(answer(MADE), answer("no plan"))
    services = replace(scripted_services(inference=inference), planner=Planner.MODEL)
    async with orchestrator(tmp_path, services) as stub:
        await create_plan(stub, request(session_id="s"))
        with pytest.raises(Internal):
            await create_plan(stub, request(session_id="s"))
        (total,) = (await call_unary("orchestrator", stub.GetUsage, pb.GetUsageRequest(session_id="s"))).totals
    assert (total.requests, total.prompt_tokens, total.output_tokens) == (2, 20, 6)


async def test_planning_counts_among_what_runs_and_has_an_end(tmp_path):
    inference = ScriptedInference(None)
    services = replace(scripted_services(inference=inference), planner=Planner.MODEL)
    async with orchestrator(tmp_path, services, max_running=1, max_execution_s=0.5) as stub:
        planning = asyncio.create_task(create_plan(stub, request()))
        await asyncio.wait_for(inference.waiting.wait(), 60)
        with pytest.raises(Overloaded, match="1 executions run already"):
            await execute(stub, request())
        with pytest.raises(Overloaded):
            await create_plan(stub, request())
        with pytest.raises(DeadlineExceeded, match="MAX_EXECUTION_S"):
            await planning
        inference.outputs = [answer(MADE)]
        assert await create_plan(stub, request())


async def test_a_step_that_waits_for_another_very_often_waits_for_it_once(tmp_path):
    steps = [plan_pb2.Step(name="a", kind="infer"), plan_pb2.Step(name="b", kind="infer", depends_on=["a"] * 999)]
    async with orchestrator(tmp_path) as stub:
        made = await create_plan(stub, request(plan=plan_pb2.ExecutionPlan(steps=steps)))
    assert [list(step.depends_on) for step in made.steps] == [[], ["a"]]
