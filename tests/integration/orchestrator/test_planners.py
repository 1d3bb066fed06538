"""Requests that bring no plan."""

import json
from dataclasses import replace

import pytest

from pagantic.common.v1 import error_pb2
from pagantic.context.v1 import context_service_pb2
from pagantic.orchestrator.v1 import execution_pb2, plan_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.domain.errors import ErrorCode, InvalidRequest, PreconditionFailed, Unavailable
from pagantic_common.rpc.call import call_unary
from services.orchestrator.core.planning import Planner
from tests.support.orchestrator_app import execute, orchestrator, system_request, timeline
from tests.support.scripted_services import ScriptedInference, answer, scripted_services

STEPS = [{"name": "draft", "prompt": "Write."}, {"name": "draft", "prompt": "Mend."}]
MADE = json.dumps({"rationale": "two are enough", "steps": STEPS})


def request(**fields):
    return system_request("What now?", mode=execution_pb2.MODE_PLAN, request_id="p", **fields)


async def create_plan(stub, asked):
    return (await call_unary("orchestrator", stub.CreatePlan, pb.CreatePlanRequest(request=asked))).plan


async def test_the_static_planner_answers_from_context(tmp_path):
    context = context_service_pb2.ContextPolicy(
        collection="docs", rerank=context_service_pb2.RerankPolicy(top_k=2), retriever=1
    )
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
