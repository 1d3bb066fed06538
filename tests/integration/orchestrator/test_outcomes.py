"""What a response says of how it ended, and what the same request gives when it is sent again."""

import asyncio
from contextlib import aclosing

import pytest

from pagantic.common.v1 import error_pb2
from pagantic.constraint.v1 import contract_pb2
from pagantic.context.v1 import policy_pb2
from pagantic.inference.v1 import generation_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.domain.errors import (
    Aborted,
    Cancelled,
    Conflict,
    DeadlineExceeded,
    ErrorCode,
    Internal,
    InvalidRequest,
    NotFound,
    Overloaded,
    PermissionDenied,
    PreconditionFailed,
    Unauthenticated,
    Unavailable,
    Unsupported,
)
from pagantic_common.domain.messages import Message, Role, ToolCall, ToolChoice
from pagantic_common.rpc.call import call_stream, call_unary
from services.orchestrator.adapters.inference.grpc_inference import infer_request
from services.orchestrator.adapters.journal.writes import entry_from_json, entry_to_json
from services.orchestrator.app.failures import failure_from
from services.orchestrator.core.execution.replay import Admitted
from services.orchestrator.core.model.request import Hints, Mode, Request
from services.orchestrator.core.model.response import InferenceDelta, InferenceOutput
from services.orchestrator.core.turn.answering import Infer
from tests.support.orchestrator_app import crash, ended, execute, orchestrator, system_request, timeline
from tests.support.scripted_services import (
    USAGE,
    ScriptedContext,
    ScriptedInference,
    ScriptedTools,
    answer,
    scripted_services,
)


class Speaking(ScriptedInference):
    """Yields deltas and raises errors as they stand in each of its scripts."""

    async def infer(self, command, hints):
        self.commands.append(command)
        self.hints = hints
        for item in self.outputs.pop(0):
            if isinstance(item, Exception):
                raise item
            if item is None:
                self.waiting.set()
                await asyncio.Event().wait()
            yield item


STARTED = InferenceDelta(usage=USAGE, model="small", seed=7)
LOST = Unavailable("the inference service cannot be reached")


def delta(text="", reasoning=""):
    return InferenceDelta(text, reasoning, USAGE, "small", 7)


def done(text, **fields):
    return InferenceOutput(text, answer().finish_reason, usage=USAGE, model="small", seed=7, **fields)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidRequest("x"), ErrorCode.CONFIG_INVALID),
        (NotFound("x"), ErrorCode.CONFIG_INVALID),
        (PreconditionFailed("x"), ErrorCode.CONFIG_INVALID),
        (Conflict("x"), ErrorCode.CONFIG_INVALID),
        (Aborted("x"), ErrorCode.CONFIG_INVALID),
        (PermissionDenied("x"), ErrorCode.CONFIG_INVALID),
        (Unsupported("x"), ErrorCode.CONFIG_INVALID),
        (Overloaded("x"), ErrorCode.ORCHESTRATION_DEPENDENCY_FAILED),
        (Internal("x"), ErrorCode.ORCHESTRATION_DEPENDENCY_FAILED),
        (Unavailable("x"), ErrorCode.ORCHESTRATION_DEPENDENCY_UNAVAILABLE),
        (DeadlineExceeded("x"), ErrorCode.ORCHESTRATION_DEPENDENCY_FAILED),  # by its own limit: the request has time
        (Cancelled("x"), ErrorCode.CANCELLED_SIGNAL),
        (Unauthenticated("x"), ErrorCode.ORCHESTRATION_DEPENDENCY_FAILED),  # the orchestrator, not its caller
    ],
)
async def test_every_error_of_another_service_keeps_its_meaning(tmp_path, error, code):
    assert failure_from(error).code is code
    async with orchestrator(tmp_path, scripted_services(inference=ScriptedInference(error))) as stub:
        response = await execute(stub, system_request())
    assert error_pb2.ErrorCode.Name(response.error.code) == f"ERROR_CODE_{code}"


POLICY = policy_pb2.ContextPolicy(collection="handbook")


@pytest.mark.parametrize("mode", [execution_pb2.MODE_CHAT, execution_pb2.MODE_STRUCTURED, execution_pb2.MODE_REDUNDANT])
@pytest.mark.parametrize(
    "error", [NotFound("no collection"), Unsupported("no vectors"), InvalidRequest("too many chunks")]
)
async def test_retrieval_that_cannot_work_fails_the_request_in_every_mode(tmp_path, mode, error):
    context = ScriptedContext()
    context.failure = error
    services = scripted_services(inference=ScriptedInference(answer("{}")), context=context)
    contract = contract_pb2.OutputContract(schema_json="{}")
    async with orchestrator(tmp_path, services) as stub:
        response = await execute(stub, system_request(mode=mode, output=contract, context=POLICY))
    assert response.error.code == error_pb2.ERROR_CODE_CONFIG_INVALID


async def test_chunks_that_are_not_embedded_yet_are_a_warning(tmp_path):
    context = ScriptedContext()
    context.unembedded_count = 3
    async with orchestrator(tmp_path, scripted_services(context=context)) as stub:
        response = await execute(stub, system_request(context=POLICY))
    (warning,) = response.warnings
    assert warning.code == "context_incomplete"
    assert warning.message.startswith("3 chunks of collection")


async def test_an_outage_of_retrieval_is_a_warning_unless_the_context_is_required(tmp_path):
    context = ScriptedContext()
    context.failure = Unavailable("the context service cannot be reached")
    async with orchestrator(tmp_path, scripted_services(context=context)) as stub:
        response = await execute(stub, system_request(request_id="r", context=POLICY))
        assert response.content == "hello"
        assert [warning.code for warning in response.warnings] == ["context_unavailable"]
        assert any(event.error.code for event in await timeline(stub, "r"))
        required = policy_pb2.ContextPolicy(collection="handbook", required=True)
        response = await execute(stub, system_request(context=required))
        assert response.error.code == error_pb2.ERROR_CODE_ORCHESTRATION_DEPENDENCY_UNAVAILABLE


async def test_a_failure_that_may_pass_is_run_again_under_its_request_id_and_a_success_is_not(tmp_path):
    inference = ScriptedInference(LOST, answer("done"), answer("more"))
    request = system_request(request_id="r", session_id="s")
    async with orchestrator(tmp_path, scripted_services(inference=inference)) as stub:
        assert (await execute(stub, request)).error.retryable
        assert (await execute(stub, request)).content == "done"
        assert (await execute(stub, request)).content == "done"
        async with aclosing(call_stream("orchestrator", stub.ExecuteStream, request)) as events:
            streamed = [event async for event in events]
        events = await timeline(stub, "r")
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert [event.completed.response.content for event in events if event.HasField("completed")] == ["", "done"]
    assert [event.completed.response.content for event in streamed if event.HasField("completed")] == ["done"]
    assert len(inference.commands) == 2


async def test_a_final_failure_is_not_run_again(tmp_path):
    inference = ScriptedInference(InvalidRequest("no such model", code=ErrorCode.CONFIG_NO_ENGINE), answer("done"))
    async with orchestrator(tmp_path, scripted_services(inference=inference)) as stub:
        for _ in range(2):
            response = await execute(stub, system_request(request_id="r"))
            assert response.error.code == error_pb2.ERROR_CODE_CONFIG_NO_ENGINE


async def test_another_payload_under_the_id_of_a_failure_is_refused(tmp_path):
    async with orchestrator(tmp_path, scripted_services(inference=ScriptedInference(LOST))) as stub:
        await execute(stub, system_request(request_id="r"))
        with pytest.raises(Conflict):
            await execute(stub, system_request("something else", request_id="r"))


async def test_callers_that_send_a_failure_again_at_once_share_one_run(tmp_path):
    inference = ScriptedInference(LOST, answer("done"))
    async with orchestrator(tmp_path, scripted_services(inference=inference)) as stub:
        request = system_request(request_id="r")
        await execute(stub, request)
        responses = await asyncio.gather(*(execute(stub, request) for _ in range(5)))
    assert {response.content for response in responses} == {"done"}
    assert len(inference.commands) == 2


async def test_what_was_said_before_a_cancel_is_in_the_response_the_usage_and_the_conversation(tmp_path):
    inference = Speaking([STARTED, delta("Once "), delta("upon"), None], [STARTED, delta("hi"), done("hi")])
    async with orchestrator(tmp_path, scripted_services(inference=inference)) as stub:
        running = asyncio.create_task(execute(stub, system_request("a tale", request_id="r", session_id="s")))
        await asyncio.wait_for(inference.waiting.wait(), 60)
        await call_unary("orchestrator", stub.CancelExecution, pb.CancelExecutionRequest(request_id="r"))
        response = await running
        assert response.error.code == error_pb2.ERROR_CODE_CANCELLED_SIGNAL
        assert response.content == "Once upon"
        assert response.finish_reason == generation_pb2.FINISH_REASON_CANCELLED
        assert (response.token_usage.prompt_tokens, response.token_usage.output_tokens) == (10, 3)
        assert response.effective_seed == 7
        reply = await call_unary("orchestrator", stub.GetSession, pb.GetSessionRequest(session_id="s"))
        said = [(message.content, message.cut) for message in reply.session.messages]
        assert said == [("a tale", False), ("Once upon", True)]
        (total,) = (await call_unary("orchestrator", stub.GetUsage, pb.GetUsageRequest())).totals
        assert (total.model, total.output_tokens) == ("small", 3)
        await execute(stub, system_request("go on", session_id="s"))
    assert [message.content for message in inference.commands[-1].messages] == ["a tale", "Once upon", "go on"]


async def test_what_was_said_before_a_timeout_is_in_the_response(tmp_path):
    inference = Speaking([STARTED, delta("Once"), None])
    request = system_request(request_id="r")
    request.hints.timeout.FromMilliseconds(300)
    async with orchestrator(tmp_path, scripted_services(inference=inference)) as stub:
        response = await execute(stub, request)
    assert response.error.code == error_pb2.ERROR_CODE_CANCELLED_TIMEOUT
    assert response.content == "Once"


async def test_an_inference_lost_before_its_first_word_is_made_again(tmp_path):
    inference = Speaking([STARTED, LOST], [STARTED, delta("hi"), done("hi")])
    async with orchestrator(tmp_path, scripted_services(inference=inference)) as stub:
        response = await execute(stub, system_request(request_id="r"))
        events = await timeline(stub, "r")
    assert response.content == "hi"
    assert response.token_usage.prompt_tokens == 20, "what was lost has its cost"
    ends = [event for event in events if event.HasField("inference_end")]
    assert [bool(event.error.code) for event in ends] == [True, False]
    assert ends[1].inference_end.model == "small"


async def test_an_inference_lost_amid_its_text_is_made_again_and_the_text_discarded(tmp_path):
    inference = Speaking([STARTED, delta("hal"), LOST], [STARTED, delta("hi"), done("hi")])
    async with (
        orchestrator(tmp_path, scripted_services(inference=inference)) as stub,
        aclosing(call_stream("orchestrator", stub.ExecuteStream, system_request())) as events,
    ):
        streamed = [event async for event in events]
    kinds = [event.WhichOneof("event") for event in streamed]
    assert kinds.index("attempt_discarded") > kinds.index("content_delta")
    assert streamed[-1].completed.response.content == "hi"
    assert streamed[-1].completed.response.token_usage.prompt_tokens == 20, "what was lost has its cost"


async def test_an_engine_that_fails_amid_its_text_is_the_response(tmp_path):
    broken = Internal("the step took too long", code=ErrorCode.INFERENCE_ENGINE_ERROR)
    inference = Speaking([STARTED, delta("hi"), broken])
    async with orchestrator(tmp_path, scripted_services(inference=inference)) as stub:
        response = await execute(stub, system_request())
    assert response.error.code == error_pb2.ERROR_CODE_INFERENCE_ENGINE_ERROR
    assert response.content == "hi"


async def test_reasoning_is_streamed_returned_stored_and_given_back(tmp_path):
    thinking = [STARTED, delta(reasoning="hm, "), delta(reasoning="yes"), delta("4"), done("4", reasoning="hm, yes")]
    inference = Speaking(thinking, [STARTED, done("5")])
    async with orchestrator(tmp_path, scripted_services(inference=inference)) as stub:
        request = system_request("2+2?", session_id="s")
        async with aclosing(call_stream("orchestrator", stub.ExecuteStream, request)) as events:
            streamed = [event async for event in events]
        assert "".join(event.reasoning_delta.text for event in streamed) == "hm, yes"
        assert "".join(event.content_delta.text for event in streamed) == "4"
        assert streamed[-1].completed.response.reasoning == "hm, yes"
        await execute(stub, system_request("and 2+3?", session_id="s"))
    assert inference.commands[-1].messages[1].reasoning == "hm, yes"


async def test_hints_reach_the_engine(tmp_path):
    inference = Speaking([STARTED, done("x")])
    hints = execution_pb2.ExecutionHints(
        stop=["END"], top_k=5, min_p=0.25, logit_bias={3: -1.5}, top_logprobs=2, priority=-3
    )
    async with orchestrator(tmp_path, scripted_services(inference=inference)) as stub:
        await execute(stub, system_request(hints=hints))
    assert inference.hints.stop == ("END",)
    assert inference.hints.sampling == {"top_k": 5, "min_p": 0.25}
    assert inference.hints.logit_bias == {3: -1.5}
    assert (inference.hints.top_logprobs, inference.hints.priority) == (2, -3)


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"stop": ["x"] * 17}, "hints.stop has 17 entries, at most 16 are taken"),
        ({"stop": [""]}, "hints.stop has a text of 0 bytes"),
        ({"top_k": -1}, "hints.top_k is -1"),
        ({"min_p": 1.5}, "hints.min_p is 1.5"),
        ({"repetition_penalty": 0.0}, "hints.repetition_penalty is 0"),
        ({"presence_penalty": 3.0}, "hints.presence_penalty is 3"),
        ({"frequency_penalty": float("nan")}, "hints.frequency_penalty is nan"),
        ({"logit_bias": {1: 200.0}}, "hints.logit_bias of token 1 is 200"),
        ({"top_logprobs": 21}, "hints.top_logprobs is 21"),
        ({"priority": 1}, "hints.priority is 1"),
        ({"reasoning": generation_pb2.Reasoning(max_tokens=-1)}, "hints.reasoning.max_tokens"),
    ],
)
async def test_a_hint_out_of_its_range_is_refused_at_the_edge(tmp_path, fields, wrong):
    async with orchestrator(tmp_path) as stub:
        with pytest.raises(InvalidRequest, match=wrong):
            await execute(stub, system_request(hints=execution_pb2.ExecutionHints(**fields)))


async def test_a_structured_answer_is_greedy_unless_hinted_and_the_model_reads_its_schema(tmp_path):
    schema = '{ "type": "object", "properties": {"country": {"type": "string", "description": "ISO code"}} }'
    inference = ScriptedInference(answer("{}"))
    contract = contract_pb2.OutputContract(schema_json=schema)
    async with orchestrator(tmp_path, scripted_services(inference=inference)) as stub:
        await execute(stub, system_request(mode=execution_pb2.MODE_STRUCTURED, output=contract))
        contract.schema_in_prompt = contract_pb2.SCHEMA_IN_PROMPT_OFF
        await execute(stub, system_request(mode=execution_pb2.MODE_STRUCTURED, output=contract))
        large = contract_pb2.OutputContract(schema_json='{"description":"' + "x" * 9000 + '"}')
        response = await execute(stub, system_request(mode=execution_pb2.MODE_STRUCTURED, output=large))
    shown, hidden, left_out = inference.commands
    assert shown.temperature == 0.0
    assert '"country"?: string, // ISO code' in shown.messages[0].content
    assert len(hidden.messages) == len(left_out.messages) == 1
    assert [warning.code for warning in response.warnings] == ["schema_not_in_prompt"]


async def test_the_plan_that_ran_is_in_the_response(tmp_path):
    async with orchestrator(tmp_path) as stub:
        response = await execute(stub, system_request(mode=execution_pb2.MODE_PLAN, request_id="p"))
        stored = (await ended(stub, "p")).response
    assert [step.kind for step in response.plan.steps] == ["infer"]
    assert response.plan.trace.planner_id == "static"
    assert response.plan.trace.HasField("created_at")
    assert stored == response


async def test_the_same_call_again_runs_once(tmp_path):
    tools = ScriptedTools()
    calls = [answer("", [ToolCall(f"c{number}", "clock", "{}")]) for number in range(3)]
    services = scripted_services(inference=ScriptedInference(*calls, answer("noon")), tools=tools)
    async with orchestrator(tmp_path, services) as stub:
        response = await execute(stub, system_request())
    assert len(tools.calls) == 1
    assert len(response.tool_calls_made) == 1


async def test_a_request_that_is_sent_again_while_it_is_being_cancelled_runs_again(tmp_path):
    inference = Speaking([STARTED, None], [STARTED, delta("hi"), done("hi")])
    async with orchestrator(tmp_path, scripted_services(inference=inference)) as stub:
        first = asyncio.create_task(execute(stub, system_request(request_id="r")))
        await asyncio.wait_for(inference.waiting.wait(), 60)
        cancel = asyncio.create_task(
            call_unary("orchestrator", stub.CancelExecution, pb.CancelExecutionRequest(request_id="r"))
        )
        again = await execute(stub, system_request(request_id="r"))
        assert (await first).error.code in (error_pb2.ERROR_CODE_CANCELLED_SIGNAL, error_pb2.ERROR_CODE_UNSPECIFIED)
        await cancel
    assert again.content in ("hi", "")
    assert again.content == "hi" or again.error.code == error_pb2.ERROR_CODE_CANCELLED_SIGNAL


async def test_a_resumed_execution_outlives_the_call_that_resumed_it(tmp_path):
    inference = Speaking([STARTED, None])
    folder = await crash(
        tmp_path, scripted_services(inference=inference), system_request(request_id="r"), inference.waiting
    )
    slow = Speaking([STARTED, delta("done"), done("done")])
    original = slow.infer

    async def late(command, hints):
        await asyncio.sleep(0.6)
        async for piece in original(command, hints):
            yield piece

    slow.infer = late
    async with orchestrator(folder, scripted_services(inference=slow)) as stub:
        await call_unary("orchestrator", stub.ResumeExecution, pb.ResumeExecutionRequest(request_id="r"), 0.3)
        response = (await ended(stub, "r")).response
    assert response.content == "done"


def test_hints_survive_the_journal_as_the_contract_has_them():
    hints = Hints(sampling={"top_k": 40, "min_p": 0.5, "repetition_penalty": 1}, logit_bias={3: 1.5}, stop=("x",))
    admitted = Admitted(Request("r", Mode.CHAT, (Message(Role.USER, "hi"),), hints=hints))
    kept = entry_from_json(entry_to_json(admitted)).request.hints
    assert kept == hints
    command = Infer((Message(Role.USER, "hi"),), (), ToolChoice(), "", None)
    sampling = infer_request(command, kept).sampling
    assert (sampling.top_k, sampling.min_p, sampling.repetition_penalty) == (40, 0.5, 1.0)
