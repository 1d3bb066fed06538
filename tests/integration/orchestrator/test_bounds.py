"""What one execution may ask for and use, so that it harms no other."""

import pytest
from google.protobuf.duration_pb2 import Duration

from pagantic.common.v1 import chunk_pb2, error_pb2, message_pb2
from pagantic.constraint.v1 import contract_pb2
from pagantic.context.v1 import context_service_pb2
from pagantic.orchestrator.v1 import execution_pb2, plan_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.domain.errors import InvalidRequest, PreconditionFailed
from pagantic_common.rpc.call import call_unary
from tests.support.orchestrator_app import execute, orchestrator, system_request


def with_backoff(seconds):
    return system_request(retry=plan_pb2.RetryPolicy(max_retries=10, backoff=Duration(seconds=seconds)))


def with_step_timeout(**fields):
    plan = plan_pb2.ExecutionPlan(steps=[plan_pb2.Step(name="a", kind="infer", **fields)])
    return system_request(mode=execution_pb2.MODE_PLAN, plan=plan)


def with_score(score):
    chunk = chunk_pb2.Chunk(content="x", score=score)
    given = plan_pb2.StepInput(context=plan_pb2.ContextIR(chunks=[chunk]))
    return with_step_timeout(input=given)


POLICY = {"collection": "c"}


@pytest.mark.parametrize(
    "request_",
    [
        with_backoff(315_576_000_000),
        with_backoff(-1),
        with_backoff(31),
        system_request(hints=execution_pb2.ExecutionHints(timeout=Duration(seconds=9_999_999_999))),
        system_request(hints=execution_pb2.ExecutionHints(timeout=Duration(seconds=-1))),
        system_request(hints=execution_pb2.ExecutionHints(top_p=0)),
        system_request(hints=execution_pb2.ExecutionHints(temperature=float("nan"))),
        system_request(hints=execution_pb2.ExecutionHints(logit_bias={-1: 1.0})),
        system_request(hints=execution_pb2.ExecutionHints(tool_choice=message_pb2.ToolChoice(mode=99))),
        system_request(context=context_service_pb2.ContextPolicy(min_score=float("nan"), **POLICY)),
        system_request(context=context_service_pb2.ContextPolicy(placement=99, **POLICY)),
        system_request(context=context_service_pb2.ContextPolicy(retriever=99, **POLICY)),
        system_request(retry=plan_pb2.RetryPolicy(kind=99)),
        system_request(output=contract_pb2.OutputContract(schema_in_prompt=99)),
        system_request(rules=[contract_pb2.Rule(expression="true")]),
        with_score(float("nan")),
        with_score(float("inf")),
    ],
)
async def test_a_value_that_cannot_be_meant_is_refused_before_anything_is_stored(tmp_path, request_):
    async with orchestrator(tmp_path) as stub:
        with pytest.raises(InvalidRequest):
            await execute(stub, request_)
        reply = await call_unary("orchestrator", stub.ListExecutions, pb.ListExecutionsRequest())
        assert not reply.executions


@pytest.mark.parametrize("seconds", [2**63 - 1, -5, 10**10])
async def test_a_timeout_of_a_step_that_no_clock_has_is_refused_by_execute_and_create_plan_alike(tmp_path, seconds):
    request = with_step_timeout(timeout=Duration(seconds=seconds))
    async with orchestrator(tmp_path) as stub:
        with pytest.raises((InvalidRequest, PreconditionFailed)):
            await call_unary("orchestrator", stub.CreatePlan, pb.CreatePlanRequest(request=request))
        try:
            response = await execute(stub, request)
        except InvalidRequest:
            return
    assert response.error.code == error_pb2.ERROR_CODE_ORCHESTRATION_PLAN_REJECTED
