"""Plans through the orchestrator, with scripted services."""

import asyncio
import contextlib
import json
import time

import pytest

from pagantic.common.v1 import error_pb2, message_pb2
from pagantic.constraint.v1 import contract_pb2
from pagantic.context.v1 import policy_pb2
from pagantic.orchestrator.v1 import execution_pb2, plan_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.domain.chunks import FENCED_HEADING
from pagantic_common.domain.errors import ErrorCode, Internal, InvalidRequest, NotFound, Overloaded, Unavailable
from pagantic_common.domain.messages import ToolCall
from pagantic_common.rpc.call import call_unary
from pagantic_common.telemetry.scope import current_deadline
from tests.support.orchestrator_app import ended, execute, orchestrator, system_request, timeline
from tests.support.scripted_services import (
    ScriptedConstraint,
    ScriptedContext,
    ScriptedInference,
    ScriptedTools,
    answer,
    scripted_services,
)

POLICY = policy_pb2.ContextPolicy(collection="handbook")
REQUIRED = execution_pb2.ExecutionHints(tool_choice=message_pb2.ToolChoice(mode=message_pb2.TOOL_CHOICE_MODE_REQUIRED))
UNDECODED = contract_pb2.OutputContract(grammar='root ::= "a"', decoder_constraint=False)
SCHEMA = contract_pb2.OutputContract(schema_json="{}")


def step(name, kind="infer", depends_on=(), parameters=None, **fields):
    text = json.dumps(parameters) if parameters is not None else ""
    return plan_pb2.Step(name=name, kind=kind, depends_on=depends_on, parameters_json=text, **fields)


def plan(*steps, policy=None, **fields):
    execution_plan = plan_pb2.ExecutionPlan(steps=steps, policy=policy)
    return system_request("What now?", mode=execution_pb2.MODE_PLAN, request_id="p", plan=execution_plan, **fields)


RETRIEVE = step("find", "retrieve", parameters={"collection": "docs", "max_chunks": 3})
RERANK = step("order", "rerank", parameters={"top_k": 2})
TOOL = step("time", "tool", parameters={"tool": "clock", "arguments": {"zone": "UTC"}})


async def ask(tmp_path, request, **services):
    async with orchestrator(tmp_path, scripted_services(**services)) as stub:
        return await execute(stub, request), await timeline(stub, "p")


def states(events):
    names = [
        execution_pb2.LifecycleState.Name(event.transition.to_state) for event in events if event.HasField("transition")
    ]
    return [name.removeprefix("LIFECYCLE_STATE_") for name in names]


async def test_a_linear_plan_passes_each_output_on(tmp_path):
    inference, context = ScriptedInference(answer('{"a": 1}')), ScriptedContext()
    request = plan(RETRIEVE, RERANK, step("say"), step("check", "validate", output=SCHEMA))
    response, events = await ask(tmp_path, request, inference=inference, context=context)
    assert not response.HasField("error")
    assert [(result.name, result.attempts) for result in response.step_results] == [
        ("find", 1), ("order", 1), ("say", 1), ("check", 1),
    ]  # fmt: skip
    assert context.retrieved[0] == "What now?"
    assert context.reranked[0] == "What now?"
    assert len(response.step_results[1].output.context.chunks) == 2
    asked = inference.commands[0].messages[-1].content
    chunks = "[1] (docs): chunk 3 of What now?\n[2] (docs): chunk 2 of What now?"
    assert asked == f"{FENCED_HEADING}\n\n```\n{chunks}\n```\n\nWhat now?"
    assert response.content == response.structured_output_json == '{"a": 1}'
    assert response.token_usage.output_tokens == 3
    assert states(events) == ["INIT", "PLAN", "PREPARE", "EXECUTE", "VALIDATE", "COMPLETE"]
    named = [event.step_start.name for event in events if event.WhichOneof("event") == "step_start"]
    assert named == ["find", "order", "say", "check"]
    inferred = next(event for event in events if event.WhichOneof("event") == "inference_end")
    assert inferred.step_name == "say"
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))


async def test_independent_steps_run_at_the_same_time_unless_the_policy_is_linear(tmp_path):
    class Meeting(ScriptedTools):
        """Answers when two calls are there, or when nobody else can come."""

        def __init__(self, patience_s):
            super().__init__()
            self.patience_s = patience_s
            self.together = 0
            self.most = 0
            self.met = asyncio.Event()

        async def execute(self, call, report):
            self.together += 1
            self.most = max(self.most, self.together)
            if self.together == 2:
                self.met.set()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.met.wait(), self.patience_s)
            self.together -= 1
            return await super().execute(call, report)

    steps = (
        step("start"),
        step("one", "tool", ["start"], {"tool": "clock", "argument": "q"}),
        step("two", "tool", ["start"], {"tool": "clock", "argument": "q"}),
        step("join", "infer", ["one", "two"]),
    )
    for linear, most, patience_s in ((False, 2, 20), (True, 1, 0.3)):
        tools, folder = Meeting(patience_s), tmp_path / str(linear)
        folder.mkdir()
        policy = plan_pb2.PlanPolicy(require_linear=linear)
        response, _ = await ask(folder, plan(*steps, policy=policy), tools=tools)
        assert not response.HasField("error")
        assert tools.most == most
        assert len(response.tool_calls_made) == 2


async def test_a_step_that_fails_returns_what_was_done_before_it(tmp_path):
    context = ScriptedContext()
    context.failure = NotFound("no collection is named 'docs'")
    response, events = await ask(tmp_path, plan(TOOL, step("say"), RETRIEVE, step("never")), context=context)
    assert response.HasField("error")
    assert [result.name for result in response.step_results] == ["time", "say", "find"]
    assert response.step_results[2].HasField("error")
    assert response.tool_calls_made[0].result == "noon"
    assert states(events)[-1] == "ERROR"


async def test_a_service_that_fails_is_tried_again_as_often_as_the_step_says(tmp_path):
    class Busy(ScriptedInference):
        failures = 2

        async def infer(self, command, hints):
            if self.failures:
                self.failures -= 1
                raise Overloaded("busy", code=ErrorCode.INFERENCE_OVERLOADED)
            async for piece in super().infer(command, hints):
                yield piece

    response, _ = await ask(tmp_path, plan(step("say", max_retries=2)), inference=Busy())
    assert (response.content, response.step_results[0].attempts) == ("hello", 3)
    (tmp_path / "b").mkdir()
    response, _ = await ask(tmp_path / "b", plan(step("say", max_retries=1)), inference=Busy())
    assert response.error.code == error_pb2.ERROR_CODE_INFERENCE_OVERLOADED
    assert response.step_results[0].attempts == 2


async def test_each_step_has_its_contract_with_retries_of_its_own(tmp_path):
    inference = ScriptedInference(answer("bad"), answer("good"), answer("last"))
    request = plan(step("one", output=SCHEMA), step("two"), output=SCHEMA)
    response, events = await ask(tmp_path, request, inference=inference, constraint=ScriptedConstraint("bad"))
    assert [result.output.content for result in response.step_results] == ["good", "last"]
    assert [event.attempt_discarded.attempt for event in events if event.HasField("attempt_discarded")] == [1]
    assert response.structured_output_json == "last"
    assert response.validation.guarantee == contract_pb2.GUARANTEE_ENFORCED
    (tmp_path / "b").mkdir()
    response, _ = await ask(
        tmp_path / "b", plan(step("one", max_retries=0), output=SCHEMA),
        inference=ScriptedInference(answer("bad")), constraint=ScriptedConstraint("bad"),
    )  # fmt: skip
    assert response.error.code == error_pb2.ERROR_CODE_CONSTRAINT_JSON_INVALID


async def test_a_step_may_use_tools_and_its_calls_are_in_the_response(tmp_path):
    inference = ScriptedInference(answer("", calls=[ToolCall("c1", "clock", "{}")]), answer("it is noon"))
    request = plan(step("say", parameters={"tools": ["clock"]}))
    response, _ = await ask(tmp_path, request, inference=inference)
    assert response.content == "it is noon"
    assert [call.name for call in response.tool_calls_made] == ["clock"]


async def test_a_step_whose_tools_ran_is_not_run_again(tmp_path):
    call = answer("", calls=[ToolCall("c1", "clock", "{}")])
    lost = Unavailable("gone", code=ErrorCode.INFERENCE_ENGINE_ERROR)
    tools = ScriptedTools()
    request = plan(step("say", parameters={"tools": ["clock"]}))
    response, _ = await ask(tmp_path, request, inference=ScriptedInference(call, lost, call, answer("x")), tools=tools)
    assert response.error.code == error_pb2.ERROR_CODE_INFERENCE_ENGINE_ERROR
    assert len(tools.calls) == len(response.tool_calls_made) == 1


@pytest.mark.parametrize(
    ("mode", "fields", "wrong"),
    [
        ("CHAT", {"plan": plan_pb2.ExecutionPlan()}, "mode CHAT runs no plan"),
        ("CHAT", {"voting": execution_pb2.Voting(n=5)}, "mode CHAT counts no votes"),
        ("REDUNDANT", {"retry": plan_pb2.RetryPolicy(max_retries=1)}, "leave retry unset"),
        ("STRUCTURED", {"hints": REQUIRED}, "name them in tools"),
        ("PLAN", {"hints": REQUIRED}, "parameter of its infer steps"),
        ("PLAN", {"plan": plan_pb2.ExecutionPlan(), "context": POLICY}, "give the plan a retrieve step"),
        ("PLAN", {"context": policy_pb2.ContextPolicy(max_tokens=5)}, "max_tokens unset"),
        ("PLAN", {"context": policy_pb2.ContextPolicy(placement=2)}, "placement"),
        ("CHAT", {"context": policy_pb2.ContextPolicy(placement=9)}, "context.placement 9 is not known"),
        ("CHAT", {"retry": plan_pb2.RetryPolicy(kind=9)}, "retry.kind 9 is not known"),
        ("CHAT", {"output": contract_pb2.OutputContract(schema_in_prompt=9)}, "schema_in_prompt 9 is not known"),
        ("CHAT", {"output": UNDECODED}, "leave output.decoder_constraint on"),
        ("REDUNDANT", {"hints": REQUIRED}, "calls no tools"),
        ("CHAT", {"retry": plan_pb2.RetryPolicy(backoff={"seconds": 61})}, "retry.backoff is 61 s"),
        ("PLAN", {"hints": execution_pb2.ExecutionHints(top_logprobs=1)}, "reports no log-probabilities"),
    ],
)
async def test_a_field_that_would_have_no_effect_is_refused(tmp_path, mode, fields, wrong):
    request = system_request(mode=execution_pb2.Mode.Value(f"MODE_{mode}"), **{"output": SCHEMA, **fields})
    async with orchestrator(tmp_path) as stub:
        with pytest.raises(InvalidRequest, match=wrong):
            await execute(stub, request)


async def test_an_unexpected_error_fails_its_step_and_names_itself(tmp_path):
    response, _ = await ask(tmp_path, plan(TOOL, step("say")), inference=ScriptedInference(RuntimeError("boom")))
    assert "internal error" in response.error.message
    assert "boom" not in response.error.message
    assert [result.name for result in response.step_results] == ["time", "say"]


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (plan(step("a", "dance")), error_pb2.ERROR_CODE_ORCHESTRATION_PLAN_REJECTED),
        (plan(step("a"), RERANK), error_pb2.ERROR_CODE_ORCHESTRATION_STEP_MISMATCH),
        (plan(step("a", "tool", parameters={"tool": "nothing"})), error_pb2.ERROR_CODE_TOOL_NOT_FOUND),
        (plan(TOOL, tools=["other"]), error_pb2.ERROR_CODE_TOOL_DENIED),
        (plan(step("a", "tool", parameters={"tool": "clock"})), error_pb2.ERROR_CODE_TOOL_INVALID_ARGUMENTS),
    ],
)
async def test_a_plan_that_cannot_run_says_why(tmp_path, request_, code):
    response, _ = await ask(tmp_path, request_)
    assert response.error.code == code


async def test_parameters_that_are_no_object_are_a_malformed_envelope(tmp_path):
    async with orchestrator(tmp_path) as stub:
        for text in ("{", "[]"):
            request = plan(plan_pb2.Step(name="a", kind="infer", parameters_json=text))
            with pytest.raises(Exception, match="parameters_json is not"):
                await execute(stub, request)


async def test_an_empty_plan_gives_an_empty_result(tmp_path):
    response, _ = await ask(tmp_path, plan())
    assert not response.HasField("error")
    assert (response.content, len(response.step_results)) == ("", 0)


async def test_a_step_that_takes_too_long_ends_by_its_timeout(tmp_path):
    request = plan(TOOL, step("slow"))
    request.plan.steps[1].timeout.FromMilliseconds(50)
    response, _ = await ask(tmp_path, request, inference=ScriptedInference(None))
    assert response.error.code == error_pb2.ERROR_CODE_ORCHESTRATION_STEP_TIMEOUT
    assert "'slow' took more than 0.05 s" in response.error.message
    assert response.step_results[1].attempts == 3
    assert [result.name for result in response.step_results] == ["time", "slow"]


async def test_a_cancelled_plan_keeps_the_steps_that_ended(tmp_path):
    inference = ScriptedInference(None)
    async with orchestrator(tmp_path, scripted_services(inference=inference)) as stub:
        running = asyncio.create_task(execute(stub, plan(TOOL, step("slow"))))
        await inference.waiting.wait()
        await call_unary("orchestrator", stub.CancelExecution, pb.CancelExecutionRequest(request_id="p"))
        await inference.stopped.wait()
        await running
        response = (await ended(stub, "p")).response
        assert response.error.code == error_pb2.ERROR_CODE_CANCELLED_SIGNAL
        assert [result.name for result in response.step_results] == ["time"]
        assert [call.name for call in response.tool_calls_made] == ["clock"]


async def test_the_same_plan_again_gives_the_stored_response(tmp_path):
    async with orchestrator(tmp_path) as stub:
        request = plan(TOOL, step("say"))
        first = await execute(stub, request)
        assert await execute(stub, request) == first
        assert len(first.step_results) == 2


async def test_a_plan_whose_tools_cannot_be_reached_fails_before_the_first_step(tmp_path):
    tools = ScriptedTools()
    tools.failure = Unavailable("tools are down")
    response, _ = await ask(tmp_path, plan(step("say"), TOOL), tools=tools)
    assert response.error.code == error_pb2.ERROR_CODE_ORCHESTRATION_DEPENDENCY_UNAVAILABLE
    assert len(response.step_results) == 0


@pytest.mark.parametrize("end", [Unavailable("gone"), Overloaded("too large"), Internal("broken")])
@pytest.mark.parametrize("is_idempotent", [True, False])
async def test_a_call_that_was_lost_is_made_again_only_when_that_does_no_harm(tmp_path, end, is_idempotent):
    tools = ScriptedTools(is_idempotent=is_idempotent)
    tools.ends = [end]
    response, events = await ask(tmp_path, plan(TOOL), tools=tools)
    assert len(tools.calls) == 1 + is_idempotent
    assert response.HasField("error") != is_idempotent
    assert not response.error.retryable
    told = next(event for event in events if event.action == "tool.end")
    assert told.error.code == told.tool_end.error_code
    assert told.error.retryable == is_idempotent
    started = [event.tool_call_id for event in events if event.action == "tool.start"]
    assert len(set(started)) == len(tools.calls)


@pytest.mark.parametrize("is_idempotent", [True, False])
async def test_a_tool_that_takes_too_long_is_retryable_when_it_is_idempotent(tmp_path, is_idempotent):
    tools = ScriptedTools(is_idempotent=is_idempotent, is_stuck=True)
    request = plan(TOOL, retry=plan_pb2.RetryPolicy(max_retries=1))
    request.plan.steps[0].timeout.FromMilliseconds(50)
    response, _ = await ask(tmp_path, request, tools=tools)
    assert response.error.code == error_pb2.ERROR_CODE_TOOL_TIMEOUT
    assert response.error.retryable == is_idempotent
    assert response.step_results[0].attempts == 1 + is_idempotent
    assert len({call.id for call in tools.calls}) == len(tools.calls)


async def test_a_step_is_tried_again_by_its_own_policy(tmp_path):
    lost = Unavailable("gone", code=ErrorCode.INFERENCE_MODEL_UNAVAILABLE)
    request = plan(step("say", retry=plan_pb2.RetryPolicy(max_retries=1, backoff={"nanos": 10_000_000})))
    response, _ = await ask(tmp_path, request, inference=ScriptedInference(lost, lost, answer("late")))
    assert response.error.code == error_pb2.ERROR_CODE_INFERENCE_MODEL_UNAVAILABLE
    assert response.step_results[0].attempts == 2


async def test_an_infer_step_takes_the_hints_of_its_parameters(tmp_path):
    inference = ScriptedInference(answer("x"))
    parameters = {"model": "other", "seed": 5, "top_p": 0.5, "tools": ["clock"], "tool_choice": "required"}
    await ask(tmp_path, plan(step("say", parameters=parameters)), inference=inference)
    assert inference.commands[0].seed == 5
    assert inference.commands[0].tool_choice.is_enforced


async def test_an_unknown_collection_is_a_configuration_failure_and_not_retried(tmp_path):
    context = ScriptedContext()
    context.failure = NotFound("no collection is named 'x'")
    request = plan(step("find", "retrieve", parameters={"collection": "x"}), step("say"))
    response, _ = await ask(tmp_path, request, context=context)
    assert response.error.code == error_pb2.ERROR_CODE_CONFIG_INVALID
    assert response.step_results[0].attempts == 1


async def test_a_planner_takes_any_number_of_chunks(tmp_path):
    policy = policy_pb2.ContextPolicy(collection="handbook", max_chunks=-1)
    request = system_request(mode=execution_pb2.MODE_PLAN, context=policy, request_id="p")
    response, _ = await ask(tmp_path, request)
    assert not response.HasField("error")


async def test_each_hop_of_a_step_gets_what_is_left_of_the_nearest_deadline(tmp_path):
    left = []

    class Timed(ScriptedInference):
        async def infer(self, command, hints):
            left.append(current_deadline().remaining_s(time.monotonic()))
            async for piece in super().infer(command, hints):
                yield piece

    request = plan(step("first"), step("second"))
    request.plan.steps[1].timeout.FromSeconds(2)
    request.hints.timeout.FromSeconds(5)
    async with orchestrator(tmp_path, scripted_services(inference=Timed())) as stub:
        await execute(stub, request, timeout_s=3.0)
        await execute(stub, system_request(), timeout_s=4.0)
    assert 2 < left[0] < 3.1  # gRPC rounds a deadline up
    assert 1 < left[1] < 2.1
    assert 3 < left[2] < 4.1


async def test_the_events_of_a_steps_inferences_carry_the_attempt_that_they_belong_to(tmp_path):
    inference = ScriptedInference(Unavailable("gone"), answer("bad"), answer("good"), answer("next"))
    steps = step("a", output=SCHEMA, retry=plan_pb2.RetryPolicy(max_retries=2)), step("b")
    services = {"inference": inference, "constraint": ScriptedConstraint("bad")}
    response, events = await ask(tmp_path, plan(*steps), **services)
    assert response.content == "next"
    found = [
        (event.step_name, event.action, event.attempt)
        for event in events
        if event.action in ("inference.start", "inference.end", "validation.stage", "attempt.discarded")
    ]
    assert found == [
        ("a", "inference.start", 1), ("a", "inference.end", 1), ("a", "attempt.discarded", 1),
        ("a", "inference.start", 2), ("a", "inference.end", 2), ("a", "validation.stage", 2),
        ("a", "attempt.discarded", 2),
        ("a", "inference.start", 3), ("a", "inference.end", 3), ("a", "validation.stage", 3),
        ("b", "inference.start", 1), ("b", "inference.end", 1),
    ]  # fmt: skip
    discarded = [event.attempt_discarded.attempt for event in events if event.HasField("attempt_discarded")]
    assert discarded == [1, 2]


async def test_attempts_of_a_step_are_counted_on_after_its_machine_has_made_several_in_one_run(tmp_path):
    inference = ScriptedInference(answer("bad"), None, answer("good"))
    request = plan(step("a", output=SCHEMA, retry=plan_pb2.RetryPolicy(max_retries=2)))
    request.plan.steps[0].timeout.FromMilliseconds(300)
    response, events = await ask(tmp_path, request, inference=inference, constraint=ScriptedConstraint("bad"))
    assert response.content == "good"
    started = [event.attempt for event in events if event.action == "inference.start"]
    discarded = [event.attempt_discarded.attempt for event in events if event.HasField("attempt_discarded")]
    assert (started, discarded) == ([1, 2, 3], [1, 2])
