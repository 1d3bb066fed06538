"""What one execution may ask for and use, so that it harms no other."""

import asyncio
import gc
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from pagantic.common.v1 import chunk_pb2, error_pb2, message_pb2
from pagantic.constraint.v1 import contract_pb2
from pagantic.context.v1 import policy_pb2
from pagantic.orchestrator.v1 import execution_pb2, plan_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.domain.errors import InvalidRequest, Overloaded, PreconditionFailed
from pagantic_common.domain.messages import ToolCall
from pagantic_common.rpc.call import call_stream, call_unary
from services.orchestrator.core.plans.planning import Planner
from tests.support.orchestrator_app import ended, execute, orchestrator, system_request
from tests.support.scripted_services import ScriptedInference, ScriptedTools, answer, scripted_services


def with_backoff(seconds):
    return system_request(retry=plan_pb2.RetryPolicy(max_retries=10, backoff=Duration(seconds=seconds)))


def with_step_timeout(**fields):
    plan = plan_pb2.ExecutionPlan(steps=[plan_pb2.Step(name="a", kind="infer", **fields)])
    return system_request(mode=execution_pb2.MODE_PLAN, plan=plan)


def with_created_at(**moment):
    trace = plan_pb2.PlanTrace(created_at=Timestamp(**moment))
    return system_request(mode=execution_pb2.MODE_PLAN, plan=plan_pb2.ExecutionPlan(trace=trace))


def with_score(score):
    chunk = chunk_pb2.Chunk(content="x", score=score)
    given = plan_pb2.StepInput(context=plan_pb2.ContextIR(chunks=[chunk]))
    return with_step_timeout(input=given)


POLICY = {"collection": "c"}
EMPTY = plan_pb2.StepInput(raw_json="{}")


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
        system_request(context=policy_pb2.ContextPolicy(min_score=float("nan"), **POLICY)),
        system_request(context=policy_pb2.ContextPolicy(placement=99, **POLICY)),
        system_request(context=policy_pb2.ContextPolicy(retriever=99, **POLICY)),
        system_request(retry=plan_pb2.RetryPolicy(kind=99)),
        system_request(output=contract_pb2.OutputContract(schema_in_prompt=99)),
        system_request(rules=[contract_pb2.Rule(expression="true")]),
        with_created_at(nanos=-1),
        with_created_at(seconds=2**62),
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


async def test_a_request_that_is_too_large_is_refused_as_it_is_encoded_and_nothing_is_stored(tmp_path):
    async with orchestrator(tmp_path, max_request_bytes=2000) as stub:
        empty = system_request("", request_id="r", mode=execution_pb2.MODE_PLAN)
        fitting = system_request(
            "é" * ((2000 - empty.ByteSize() - 4) // 2), request_id="r", mode=execution_pb2.MODE_PLAN
        )
        assert 1990 < fitting.ByteSize() <= 2000
        larger = system_request("é" * 1000, request_id="l", mode=execution_pb2.MODE_PLAN)
        for call in (
            lambda: execute(stub, larger),
            lambda: collect(stub, larger),
            lambda: call_unary("orchestrator", stub.CreatePlan, pb.CreatePlanRequest(request=larger)),
        ):
            with pytest.raises(
                InvalidRequest, match=rf"has {larger.ByteSize()} bytes, at most 2000 .*MAX_REQUEST_BYTES"
            ):
                await call()
        assert not (await execute(stub, fitting)).HasField("error")
        listed = await call_unary("orchestrator", stub.ListExecutions, pb.ListExecutionsRequest())
        assert [one.request_id for one in listed.executions] == ["r"]


async def collect(stub, request):
    return [event async for event in call_stream("orchestrator", stub.ExecuteStream, request)]


async def test_the_requests_that_run_have_so_many_bytes_in_all(tmp_path):
    inference = ScriptedInference(None)
    services = scripted_services(inference=inference)
    async with orchestrator(tmp_path, services, max_running_bytes=10_000) as stub:
        running = asyncio.create_task(execute(stub, system_request("x" * 6_000, request_id="r")))
        await asyncio.wait_for(inference.waiting.wait(), 60)
        with pytest.raises(Overloaded, match=r"have 60\d\d bytes already, and this one 60\d\d, the limit is 10000"):
            await execute(stub, system_request("y" * 6_000))
        inference.outputs = [answer()]
        assert (await execute(stub, system_request("y" * 100))).content == "hello"
        running.cancel()
        await ended(stub, "r")
        for _ in range(3):
            assert (await execute(stub, system_request("y" * 9_000))).content == "hello", "what has ended has no bytes"


@pytest.mark.parametrize("call", ["execute", "collect"])
async def test_callers_that_join_a_request_count_with_their_bytes_too(tmp_path, call):
    inference = ScriptedInference(None)
    request = system_request("x" * 6_000, request_id="r")
    join = {"execute": execute, "collect": collect}[call]
    async with orchestrator(tmp_path, scripted_services(inference=inference), max_running_bytes=15_000) as stub:
        first = asyncio.create_task(join(stub, request))
        await asyncio.wait_for(inference.waiting.wait(), 60)
        second = asyncio.create_task(join(stub, request))
        (run,) = stub.executions.registry
        await until(lambda: run.watcher_count == 2)
        with pytest.raises(Overloaded, match=r"have 120\d\d bytes already, and this one 60\d\d, the limit is 15000"):
            await join(stub, request)
        second.cancel()
        await until(lambda: run.watcher_count == 1)
        third = asyncio.create_task(join(stub, request))
        await until(lambda: run.watcher_count == 2)
        for task in (first, third):
            task.cancel()
        await ended(stub, "r")


async def until(is_so):
    async with asyncio.timeout(60):
        while not is_so():  # noqa: ASYNC110 - as a caller looks
            await asyncio.sleep(0.01)


class Crowd(ScriptedInference):
    """Counts how many inferences run at the same time. The first ones wait until eight run."""

    def __init__(self):
        super().__init__()
        self.now = self.most = 0
        self.full = asyncio.Event()

    async def infer(self, command, hints):
        self.now += 1
        self.most = max(self.most, self.now)
        if self.most == 8:
            self.full.set()
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.full.wait(), 20)
            await asyncio.sleep(0.01)  # a ninth inference would begin now
            yield answer()
        finally:
            self.now -= 1


class Toolbox(ScriptedTools):
    """Counts how many calls run at the same time. The first calls wait until sixteen run."""

    now = most = 0

    def __init__(self):
        super().__init__()
        self.full = asyncio.Event()

    async def execute(self, call, report):
        self.now += 1
        self.most = max(self.most, self.now)
        if self.most == 16:
            self.full.set()
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.full.wait(), 20)
            await asyncio.sleep(0.01)  # further calls would begin now
            return await super().execute(call, report)
        finally:
            self.now -= 1


async def test_a_plan_runs_no_more_than_eight_steps_at_the_same_time(tmp_path):
    steps = [plan_pb2.Step(name=f"s{number}", kind="infer") for number in range(63)]
    steps.append(plan_pb2.Step(name="end", kind="infer", depends_on=["s0"]))
    request = system_request(mode=execution_pb2.MODE_PLAN, plan=plan_pb2.ExecutionPlan(steps=steps))
    inference = Crowd()
    async with orchestrator(tmp_path, scripted_services(inference=inference)) as stub:
        response = await execute(stub, request)
    assert len(response.step_results) == 64
    assert not response.HasField("error")
    assert inference.most == 8


async def test_a_turn_runs_no_more_than_sixteen_tool_calls_at_the_same_time(tmp_path):
    calls = [ToolCall(f"c{number}", "clock", "{}") for number in range(30)]
    tools, inference = Toolbox(), ScriptedInference(answer("", calls), answer("done"))
    async with orchestrator(tmp_path, scripted_services(inference=inference, tools=tools)) as stub:
        response = await execute(stub, system_request())
    assert [call.id for call in response.tool_calls_made] == [call.id for call in calls]
    assert tools.most == 16


async def test_steps_that_are_tool_calls_count_among_the_sixteen_of_an_execution(tmp_path):
    calls = [ToolCall(f"c{number}", "clock", "{}") for number in range(30)]
    tools, inference = Toolbox(), ScriptedInference(answer("", calls), answer("done"))
    steps = [plan_pb2.Step(name="ask", kind="infer", parameters_json='{"tools": ["clock"]}')]
    steps += [
        plan_pb2.Step(name=f"t{number}", kind="tool", parameters_json='{"tool": "clock"}', input=EMPTY)
        for number in range(20)
    ]
    steps.append(plan_pb2.Step(name="end", kind="infer", depends_on=["ask"]))
    request = system_request(mode=execution_pb2.MODE_PLAN, plan=plan_pb2.ExecutionPlan(steps=steps))
    async with orchestrator(tmp_path, scripted_services(inference=inference, tools=tools)) as stub:
        response = await execute(stub, request)
    assert not response.HasField("error"), response.error
    assert len(response.tool_calls_made) == 50
    assert tools.most == 16


async def test_what_is_planned_counts_with_its_bytes_too(tmp_path):
    inference = ScriptedInference(None)
    services = replace(scripted_services(inference=inference), planner=Planner.MODEL)
    large = system_request("x" * 6_000, mode=execution_pb2.MODE_PLAN)
    async with orchestrator(tmp_path, services, max_running_bytes=10_000) as stub:
        planning = asyncio.create_task(create_plan(stub, large))
        await asyncio.wait_for(inference.waiting.wait(), 60)
        for call in (create_plan, execute):
            with pytest.raises(Overloaded, match=r"have 60\d\d bytes already, and this one 60\d\d, the limit is 10000"):
                await call(stub, large)
        planning.cancel()
        inference.outputs = [answer()] * 3
        while stub.executions.registry.count:  # noqa: ASYNC110 - as a caller looks
            await asyncio.sleep(0.01)
        assert (await execute(stub, system_request("y" * 9_000))).content == "hello", "what has ended has no bytes"


async def create_plan(stub, request):
    return await call_unary("orchestrator", stub.CreatePlan, pb.CreatePlanRequest(request=request))


async def test_a_request_of_very_many_messages_is_refused_before_it_is_decoded(tmp_path):
    many = system_request()
    many.messages.extend([many.messages[0]] * 4096)
    async with orchestrator(tmp_path) as stub:
        with pytest.raises(InvalidRequest, match="4097 entries, at most 4096 are taken"):
            await execute(stub, many)


async def send(stub, method, request):
    if method == "CreatePlan":
        await create_plan(stub, request)
    elif method == "Execute":
        await execute(stub, request)
    else:
        async for _ in call_stream("orchestrator", stub.ExecuteStream, request, 10.0):
            pass


@pytest.mark.parametrize("method", ["Execute", "ExecuteStream", "CreatePlan"])
async def test_a_plan_of_very_many_steps_is_refused_before_it_is_decoded(tmp_path, method):
    plan = plan_pb2.ExecutionPlan(steps=[plan_pb2.Step()] * 500_000)
    request = system_request(mode=execution_pb2.MODE_PLAN, plan=plan, request_id="r")
    async with orchestrator(tmp_path) as stub:
        before_s = time.process_time()
        with pytest.raises(InvalidRequest, match=r"plan\.steps has 500000 entries, at most 64 are taken"):
            await send(stub, method, request)
        assert time.process_time() - before_s < 1, "the caller and the service run in one process"
        reply = await call_unary("orchestrator", stub.ListExecutions, pb.ListExecutionsRequest())
    assert not reply.executions


def resident_bytes():
    """Return the memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


async def test_the_content_of_a_refused_call_is_freed_without_a_collection(tmp_path):
    request = pb.UpdateSessionRequest(session_id="s", removed_keys=["not an id!"])
    for _ in range(10):
        request.appended_messages.add(role=message_pb2.ROLE_USER, content="x" * 99_000)
    async with orchestrator(tmp_path) as stub:

        async def be_refused(count):
            for _ in range(count):
                with pytest.raises(InvalidRequest):
                    await call_unary("orchestrator", stub.UpdateSession, request, 10.0)

        await be_refused(5)
        gc.collect()
        gc.disable()
        try:
            before = resident_bytes()
            await be_refused(100)
            assert resident_bytes() - before < 60_000_000
        finally:
            gc.enable()
