"""The orchestrator over a real socket and a real journal, with scripted services behind it."""

import asyncio

import pytest

from pagantic.common.v1 import error_pb2, message_pb2
from pagantic.constraint.v1 import contract_pb2
from pagantic.context.v1 import policy_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.domain.errors import (
    Cancelled,
    Conflict,
    DeadlineExceeded,
    ErrorCode,
    InvalidRequest,
    NotFound,
    Overloaded,
    Unavailable,
)
from pagantic_common.domain.messages import ToolCall
from pagantic_common.rpc.call import call_stream, call_unary
from tests.support.orchestrator_app import ended, execute, orchestrator, system_request, timeline
from tests.support.scripted_services import (
    ScriptedConstraint,
    ScriptedContext,
    ScriptedInference,
    ScriptedTools,
    answer,
    scripted_services,
)


def vote_request(tools=(), **voting):
    output = contract_pb2.OutputContract(schema_json="{}")
    fields = {"output": output, "voting": execution_pb2.Voting(**voting), "tools": tools}
    return system_request(mode=execution_pb2.MODE_REDUNDANT, **fields)


CALL = ToolCall("c1", "clock", '{"zone":"UTC"}')


def structured(**fields):
    output = contract_pb2.OutputContract(schema_json='{"type":"object"}')
    return system_request(mode=execution_pb2.MODE_STRUCTURED, output=output, **fields)


async def test_a_chat_answers_and_its_timeline_has_no_gaps(tmp_path):
    async with orchestrator(tmp_path) as stub:
        response = await execute(stub, system_request(request_id="r1"))
        assert response.content == "hello"
        assert response.token_usage.output_tokens == 3
        events = await timeline(stub, "r1")
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    states = [event.transition.to_state for event in events if event.WhichOneof("event") == "transition"]
    assert [execution_pb2.LifecycleState.Name(state).removeprefix("LIFECYCLE_STATE_") for state in states] == [
        "INIT",
        "PREPARE",
        "EXECUTE",
        "COMPLETE",
    ]
    assert all(event.correlation.request_id == "r1" and event.correlation.trace_id for event in events)
    assert events[-1].completed.response == response


async def test_a_tool_call_is_told_with_its_cause_and_duration(tmp_path):
    services = scripted_services(inference=ScriptedInference(answer("", [CALL]), answer("noon")))
    async with orchestrator(tmp_path, services) as stub:
        response = await execute(stub, system_request(request_id="r1"))
        events = await timeline(stub, "r1")
    assert [call.result for call in response.tool_calls_made] == ["noon"]
    actions = [event.action for event in events if not event.action.startswith("lifecycle")]
    assert actions == [
        "inference.start",
        "inference.end",
        "tool.start",
        "tool.end",
        "inference.start",
        "inference.end",
        "execution.end",
    ]
    by_action = {event.action: event for event in events}
    assert by_action["tool.end"].correlation.caused_by == "inference-1"
    assert by_action["inference.end"].correlation.caused_by == "c1"
    assert by_action["tool.end"].HasField("duration")


async def test_a_stream_gives_text_between_stored_events_and_ends_with_completed(tmp_path):
    services = scripted_services(inference=ScriptedInference(answer("one two three")))
    async with orchestrator(tmp_path, services) as stub:
        request = system_request()
        events = [event async for event in call_stream("orchestrator", stub.ExecuteStream, request)]
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds.count("content_delta") == 3
    assert kinds[-1] == "completed"
    assert "".join(event.content_delta.text for event in events) == "one two three"


async def test_structured_output_is_retried_and_its_streamed_text_is_discarded(tmp_path):
    inference = ScriptedInference(answer("bad"), answer("{}"))
    services = scripted_services(inference=inference, constraint=ScriptedConstraint("bad"))
    async with orchestrator(tmp_path, services) as stub:
        response = await execute(stub, structured(request_id="r1"))
        events = await timeline(stub, "r1")
    assert response.structured_output_json == "{}"
    assert response.validation.guarantee == contract_pb2.GUARANTEE_ENFORCED
    assert "attempt.discarded" in [event.action for event in events]
    assert events[-1].attempt == 2


async def test_the_same_id_and_payload_runs_once_and_another_payload_is_refused(tmp_path):
    inference = ScriptedInference(answer("only"))
    async with orchestrator(tmp_path, scripted_services(inference=inference)) as stub:
        first = await execute(stub, system_request(request_id="r1"))
        assert await execute(stub, system_request(request_id="r1")) == first
        assert len(inference.commands) == 1
        with pytest.raises(Conflict):
            await execute(stub, system_request("other", request_id="r1"))


async def test_a_second_caller_joins_the_running_execution(tmp_path):
    inference = ScriptedInference(None)
    async with orchestrator(tmp_path, scripted_services(inference=inference)) as stub:
        both = [asyncio.create_task(execute(stub, system_request(request_id="r1"))) for _ in range(2)]
        await inference.waiting.wait()
        reply = await call_unary("orchestrator", stub.CancelExecution, pb.CancelExecutionRequest(request_id="r1"))
        assert reply.state == execution_pb2.LIFECYCLE_STATE_CANCELLED
        first, second = await asyncio.gather(*both)
    assert first == second
    assert first.error.code == error_pb2.ERROR_CODE_CANCELLED_SIGNAL
    assert len(inference.commands) == 1


async def test_a_caller_that_goes_away_stops_the_inference(tmp_path):
    inference = ScriptedInference(None)
    async with orchestrator(tmp_path, scripted_services(inference=inference)) as stub:
        call = stub.Execute(system_request(request_id="r1"))
        await inference.waiting.wait()
        call.cancel()
        await asyncio.wait_for(inference.stopped.wait(), 60)
        execution = await ended(stub, "r1")
    assert execution.state.current == execution_pb2.LIFECYCLE_STATE_CANCELLED
    assert execution.response.error.code == error_pb2.ERROR_CODE_CANCELLED_SIGNAL


async def test_a_hint_timeout_is_a_response_and_the_callers_deadline_a_status(tmp_path):
    async with orchestrator(tmp_path, scripted_services(inference=ScriptedInference(None))) as stub:
        request = system_request()
        request.hints.timeout.FromMilliseconds(100)
        response = await execute(stub, request)
        assert response.error.code == error_pb2.ERROR_CODE_CANCELLED_TIMEOUT
        with pytest.raises((DeadlineExceeded, Cancelled)):
            await execute(stub, system_request(request_id="late"), timeout_s=0.6)
        execution = await ended(stub, "late")
    assert execution.response.error.code == error_pb2.ERROR_CODE_CANCELLED_TIMEOUT


async def test_a_timeout_of_zero_is_none(tmp_path):
    async with orchestrator(tmp_path) as stub:
        request = system_request()
        request.hints.timeout.FromMilliseconds(0)
        assert (await execute(stub, request)).content == "hello"


@pytest.mark.parametrize(
    ("request_", "error", "wrong"),
    [
        (execution_pb2.SystemRequest(mode=execution_pb2.MODE_CHAT), InvalidRequest, "messages is empty"),
        (system_request(mode=execution_pb2.MODE_UNSPECIFIED), InvalidRequest, "mode is not set"),
        (system_request(mode=99), InvalidRequest, "mode 99"),
        (vote_request(n=17), InvalidRequest, "voting.n is 17"),
        (vote_request(n=-1), InvalidRequest, "voting.n is -1"),
        (vote_request(min_agreement=1.5), InvalidRequest, "voting.min_agreement is 1.5"),
        (vote_request(strategy=9), InvalidRequest, "voting.strategy 9"),
        (vote_request(tools=["clock"]), InvalidRequest, "REDUNDANT runs no tools"),
        (system_request(request_id="no spaces"), InvalidRequest, "request_id"),
        (system_request(hints=execution_pb2.ExecutionHints(model="a\0")), InvalidRequest, "hints.model"),
        (system_request(hints=execution_pb2.ExecutionHints(model="a" * 201)), InvalidRequest, "hints.model"),
        (
            execution_pb2.SystemRequest(mode=execution_pb2.MODE_CHAT, messages=[message_pb2.Message(content="x")]),
            InvalidRequest,
            "role is not set",
        ),
    ],
)
async def test_a_malformed_envelope_is_a_status_and_nothing_is_executed(tmp_path, request_, error, wrong):
    async with orchestrator(tmp_path) as stub:
        with pytest.raises(error, match=wrong):
            await execute(stub, request_)
        listed = await call_unary("orchestrator", stub.ListExecutions, pb.ListExecutionsRequest())
        assert not listed.executions


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (system_request(mode=execution_pb2.MODE_STRUCTURED), error_pb2.ERROR_CODE_CONFIG_SCHEMA_REQUIRED),
        (
            system_request(output=contract_pb2.OutputContract(schema_json="{")),
            error_pb2.ERROR_CODE_CONFIG_INVALID,
        ),
        (system_request(tools=["hammer"]), error_pb2.ERROR_CODE_TOOL_NOT_FOUND),
    ],
)
async def test_once_admitted_a_wrong_configuration_is_a_response(tmp_path, request_, code):
    async with orchestrator(tmp_path) as stub:
        response = await execute(stub, request_)
    assert response.error.code == code
    assert not response.error.retryable
    assert response.error.message


async def test_a_chat_goes_on_without_tools_or_context_that_cannot_be_reached(tmp_path):
    tools, context = ScriptedTools(), ScriptedContext()
    tools.failure = context.failure = Unavailable("down")
    async with orchestrator(tmp_path, scripted_services(tools=tools, context=context)) as stub:
        policy = policy_pb2.ContextPolicy(collection="c")
        response = await execute(stub, system_request(request_id="r1", context=policy))
        assert response.content == "hello"
        retrieved = [event for event in await timeline(stub, "r1") if event.action == "context.retrieved"]
        assert retrieved[0].error.message == "down"
        named = await execute(stub, system_request(tools=["clock"]))
        assert named.error.code == error_pb2.ERROR_CODE_ORCHESTRATION_DEPENDENCY_UNAVAILABLE
        assert named.error.retryable


async def test_one_more_execution_than_the_limit_is_overloaded(tmp_path):
    inference = ScriptedInference(None)
    async with orchestrator(tmp_path, scripted_services(inference=inference), max_running=1) as stub:
        call = stub.Execute(system_request())
        await inference.waiting.wait()
        with pytest.raises(Overloaded) as caught:
            await execute(stub, system_request())
        assert caught.value.retry_after_s
        call.cancel()


async def test_a_bug_is_a_response_with_an_error_id_and_leaks_nothing(tmp_path):
    inference = ScriptedInference(ZeroDivisionError("secret"))
    async with orchestrator(tmp_path, scripted_services(inference=inference)) as stub:
        response = await execute(stub, system_request())
    assert "internal error" in response.error.message
    assert "secret" not in response.error.message


async def test_a_failure_code_of_a_service_reaches_the_caller_as_it_was(tmp_path):
    constraint = ScriptedConstraint()
    constraint.failure = InvalidRequest("no", code=ErrorCode.CONSTRAINT_TOO_COMPLEX)
    async with orchestrator(tmp_path, scripted_services(constraint=constraint)) as stub:
        response = await execute(stub, structured())
    assert response.error.code == error_pb2.ERROR_CODE_CONSTRAINT_TOO_COMPLEX


async def test_a_cancellation_before_the_run_has_started_is_not_lost(tmp_path):
    inference = ScriptedInference(None)
    async with orchestrator(tmp_path, scripted_services(inference=inference)) as stub:
        for number in range(20):
            request = system_request(request_id=f"early-{number}")
            running = asyncio.create_task(execute(stub, request))
            while True:
                try:
                    cancel = pb.CancelExecutionRequest(request_id=request.request_id)
                    reply = await call_unary("orchestrator", stub.CancelExecution, cancel)
                    break
                except NotFound:
                    await asyncio.sleep(0)
            assert reply.state == execution_pb2.LIFECYCLE_STATE_CANCELLED
            assert (await running).error.code == error_pb2.ERROR_CODE_CANCELLED_SIGNAL


async def test_two_callers_of_one_stored_response_both_get_it(tmp_path):
    async with orchestrator(tmp_path) as stub:
        before = await execute(stub, system_request(request_id="done"))
    async with orchestrator(tmp_path) as stub:
        both = await asyncio.gather(*(execute(stub, system_request(request_id="done")) for _ in range(2)))
    assert both == [before, before]


async def test_services_are_called_in_the_name_of_the_request_and_in_its_trace(tmp_path):
    tools, trace_id = ScriptedTools(), "0af7651916cd43dd8448eb211c80319c"
    async with orchestrator(tmp_path, scripted_services(tools=tools)) as stub:
        await execute(stub, system_request(request_id="r1", session_id="s1", trace_id=trace_id))
        events = await timeline(stub, "r1")
    (correlation,) = tools.correlations
    assert (correlation.request_id, correlation.session_id, correlation.trace_id) == ("r1", "s1", trace_id)
    assert {event.correlation.trace_id for event in events} == {trace_id}
    assert all(event.correlation.span_id for event in events)


async def test_a_call_inside_a_trace_is_part_of_it_and_its_events_name_the_callers_span(tmp_path):
    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with orchestrator(tmp_path) as stub:
        await stub.Execute(system_request(request_id="r1"), metadata=(("traceparent", traceparent),))
        events = await timeline(stub, "r1")
    assert {event.correlation.trace_id for event in events} == {"0af7651916cd43dd8448eb211c80319c"}
    assert {event.correlation.parent_span_id for event in events} == {"b7ad6b7169203331"}
    assert "b7ad6b7169203331" not in {event.correlation.span_id for event in events}


async def test_the_deadline_of_one_caller_does_not_end_the_run_of_another(tmp_path):
    inference = ScriptedInference(None)
    async with orchestrator(tmp_path, scripted_services(inference=inference)) as stub:
        hurried = asyncio.create_task(execute(stub, system_request(request_id="r1"), timeout_s=1.5))
        await inference.waiting.wait()
        patient = asyncio.create_task(execute(stub, system_request(request_id="r1"), timeout_s=30))
        with pytest.raises(DeadlineExceeded):
            await hurried
        await asyncio.sleep(0.1)
        assert not inference.stopped.is_set()
        await call_unary("orchestrator", stub.CancelExecution, pb.CancelExecutionRequest(request_id="r1"))
        assert (await patient).error.code == error_pb2.ERROR_CODE_CANCELLED_SIGNAL
