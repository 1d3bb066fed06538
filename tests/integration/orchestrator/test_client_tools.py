"""Tools that the caller runs, over real sockets and with a real journal."""

from dataclasses import replace

import pytest

from pagantic.common.v1 import error_pb2, message_pb2, usage_pb2
from pagantic.inference.v1 import generation_pb2
from pagantic.inference.v1 import inference_service_pb2 as pb
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.messages import ToolCall
from pagantic_common.rpc.call import call_stream
from pagantic_common.rpc.channel import open_channel
from services.orchestrator.adapters.inference.grpc_inference import GrpcInference
from tests.support import scripted_peers
from tests.support.orchestrator_app import crash, execute, orchestrator, system_request
from tests.support.scripted_services import (
    ScriptedConstraint,
    ScriptedInference,
    ScriptedTools,
    answer,
    scripted_services,
)

OPEN = message_pb2.ToolDefinition(name="open_door", description="Opens.", parameters_json='{"type":"object"}')
BELL = message_pb2.ToolDefinition(name="bell", description="Rings.")
CLOCK = message_pb2.ToolDefinition(name="clock", description="Tells.")
CALL = ToolCall("c1", "open_door", '{"door":1}')
ASKED = ToolCall("c2", "clock", "{}")
DONE = message_pb2.Message(role=message_pb2.ROLE_TOOL, content="open", tool_call_id="c1", name="open_door")
TOOL = generation_pb2.FINISH_REASON_TOOL


async def test_the_caller_gets_the_call_and_its_result_goes_on_in_the_session(tmp_path):
    inference = ScriptedInference(answer("", calls=[CALL]), answer("it is open"))
    async with orchestrator(tmp_path, scripted_services(inference=inference)) as stub:
        first = await execute(stub, system_request(session_id="s", client_tools=[OPEN]))
        assert [(call.id, call.name, call.arguments_json) for call in first.tool_calls] == [
            ("c1", "open_door", '{"door":1}')
        ]
        assert (first.finish_reason, first.content) == (TOOL, "")
        assert not first.HasField("error")
        request = system_request(session_id="s", client_tools=[OPEN])
        request.messages[0].CopyFrom(DONE)
        second = await execute(stub, request)
    assert second.content == "it is open"
    roles = [message.role.value for message in inference.commands[1].messages]
    assert roles == ["user", "assistant", "tool"]


async def test_a_session_that_waits_for_results_takes_no_question(tmp_path):
    inference = ScriptedInference(answer("", calls=[CALL]), answer("never"))
    async with orchestrator(tmp_path, scripted_services(inference=inference)) as stub:
        await execute(stub, system_request(session_id="s", client_tools=[OPEN]))
        refused = await execute(stub, system_request("and?", session_id="s", client_tools=[OPEN]))
    assert refused.error.code == error_pb2.ERROR_CODE_CONFIG_INVALID
    assert "'c1' (open_door)" in refused.error.message


async def test_client_tools_are_offered_alone_unless_others_are_named(tmp_path):
    inference = ScriptedInference(answer("no"))
    async with orchestrator(tmp_path, scripted_services(inference=inference, tools=ScriptedTools())) as stub:
        await execute(stub, system_request(client_tools=[OPEN]))
        await execute(stub, system_request(client_tools=[OPEN], tools=["clock"]))
        with pytest.raises(InvalidRequest, match="'clock' appears twice"):
            await execute(stub, system_request(client_tools=[CLOCK], tools=["clock"]))
    offered = [[tool.name for tool in command.tools] for command in inference.commands]
    assert offered == [["open_door"], ["clock", "open_door"]]


async def test_a_result_of_another_tool_in_the_same_turn_is_there_after_a_crash(tmp_path):
    inference = ScriptedInference(answer("", calls=[CALL, ASKED]))
    tools = ScriptedTools(is_idempotent=True, is_stuck=True)
    request = system_request(request_id="r", client_tools=[OPEN], tools=["clock"])
    folder = await crash(tmp_path, scripted_services(inference=inference, tools=tools), request, tools.called)
    async with orchestrator(
        folder, scripted_services(inference=ScriptedInference(), tools=ScriptedTools(is_idempotent=True))
    ) as stub:
        response = await execute(stub, request)
    assert [call.name for call in response.tool_calls] == ["open_door"]
    assert [call.name for call in response.tool_calls_made] == ["clock"]


STRICT = message_pb2.ToolDefinition(
    name="open_door", description="Opens.", parameters_json='{"type":"object","properties":{"door":{"type":"string"}}}'
)
MENDED = ToolCall("c3", "open_door", '{"door":"1"}')


async def test_the_model_corrects_arguments_that_break_the_schema_of_the_callers_tool(tmp_path):
    inference = ScriptedInference(answer("", calls=[CALL]), answer("", calls=[MENDED]))
    services = scripted_services(inference=inference, constraint=ScriptedConstraint(CALL.arguments_json))
    async with orchestrator(tmp_path, services) as stub:
        response = await execute(stub, system_request(client_tools=[STRICT]))
    assert [call.arguments_json for call in response.tool_calls] == ['{"door":"1"}']
    assert not response.warnings
    assert "arguments are not right" in inference.commands[1].messages[-1].content


async def test_arguments_that_stay_wrong_go_to_the_caller_with_a_warning(tmp_path):
    inference = ScriptedInference(answer("", calls=[CALL]))
    constraint = ScriptedConstraint(CALL.arguments_json)
    async with orchestrator(tmp_path, scripted_services(inference=inference, constraint=constraint)) as stub:
        response = await execute(stub, system_request(client_tools=[STRICT]))
    assert [call.arguments_json for call in response.tool_calls] == ['{"door":1}']
    assert [warning.code for warning in response.warnings] == ["tool_arguments_invalid"]
    assert len(inference.commands) == 2


async def test_arguments_that_the_decoder_held_and_those_without_a_schema_are_not_checked(tmp_path):
    held = replace(answer("", calls=[CALL]), calls_held=True)
    for output, tool in ((held, STRICT), (answer("", calls=[replace(CALL, name="bell")]), BELL)):
        inference = ScriptedInference(output)
        constraint = ScriptedConstraint(CALL.arguments_json)
        async with orchestrator(tmp_path, scripted_services(inference=inference, constraint=constraint)) as stub:
            response = await execute(stub, system_request(client_tools=[tool]))
        assert (len(response.tool_calls), len(response.warnings), len(inference.commands)) == (1, 0, 1)


def delta(**fields):
    return pb.InferResponse(delta=pb.CandidateDelta(output_tokens=1, **fields))


def piece(index, text, call_id="", name=""):
    return delta(tool_calls=[generation_pb2.ToolCallDelta(index=index, id=call_id, name=name, arguments_json=text)])


async def calls_in_pieces(_number):
    yield pb.InferResponse(started=pb.InferenceStarted(prompt_tokens=1))
    yield piece(0, "", "c2", "clock")
    yield piece(0, "{}")
    yield piece(1, "", "c1", "open_door")
    yield piece(1, '{"do')
    yield piece(1, 'or":1}')
    calls = [
        message_pb2.ToolCall(id="c2", name="clock", arguments_json="{}"),
        message_pb2.ToolCall(id="c1", name="open_door", arguments_json='{"door":1}'),
    ]
    yield pb.InferResponse(candidate_end=pb.CandidateEnd(finish_reason=TOOL, tool_calls=calls, output_tokens=9))
    yield pb.InferResponse(completed=pb.InferenceCompleted(usage=usage_pb2.TokenUsage(output_tokens=9)))


async def wrong_then_right(number):
    yield pb.InferResponse(
        started=pb.InferenceStarted(prompt_tokens=1, model=message_pb2.ModelInfo(name="far", capabilities=["remote"]))
    )
    call = CALL if number == 1 else MENDED
    yield piece(0, "", call.id, call.name)
    yield piece(0, call.arguments_json)
    calls = [message_pb2.ToolCall(id=call.id, name=call.name, arguments_json=call.arguments_json)]
    yield pb.InferResponse(candidate_end=pb.CandidateEnd(finish_reason=TOOL, tool_calls=calls, output_tokens=9))
    yield pb.InferResponse(completed=pb.InferenceCompleted(usage=usage_pb2.TokenUsage(output_tokens=9)))


async def test_calls_of_a_remote_model_are_streamed_once_they_are_right(tmp_path):
    async with (
        scripted_peers.served(scripted_peers.ScriptedInference(wrong_then_right)) as (_, port),
        open_channel(f"127.0.0.1:{port}", max_message_bytes=1 << 20) as channel,
    ):
        services = scripted_services(
            inference=GrpcInference(channel, 1.0), constraint=ScriptedConstraint(CALL.arguments_json)
        )
        async with orchestrator(tmp_path, services) as stub:
            request = system_request(client_tools=[STRICT])
            events = [event async for event in call_stream("orchestrator", stub.ExecuteStream, request)]
    pieces = [event.tool_call_delta for event in events if event.HasField("tool_call_delta")]
    assert [(one.index, one.id, one.name, one.arguments_json) for one in pieces] == [
        (0, "c3", "open_door", ""),
        (0, "", "", '{"door":"1"}'),
    ]
    assert not [event for event in events if event.HasField("attempt_discarded")]
    assert [call.id for call in events[-1].completed.response.tool_calls] == ["c3"]


async def test_calls_of_client_tools_are_streamed_piece_by_piece(tmp_path):
    async with (
        scripted_peers.served(scripted_peers.ScriptedInference(calls_in_pieces)) as (_, port),
        open_channel(f"127.0.0.1:{port}", max_message_bytes=1 << 20) as channel,
    ):
        services = scripted_services(inference=GrpcInference(channel, 1.0), tools=ScriptedTools())
        async with orchestrator(tmp_path, services) as stub:
            request = system_request(client_tools=[OPEN], tools=["clock"])
            events = [event async for event in call_stream("orchestrator", stub.ExecuteStream, request)]
    pieces = [event.tool_call_delta for event in events if event.HasField("tool_call_delta")]
    assert [(one.index, one.id, one.name, one.arguments_json) for one in pieces] == [
        (0, "c1", "open_door", ""),
        (0, "", "", '{"do'),
        (0, "", "", 'or":1}'),
    ]
    (call,) = events[-1].completed.response.tool_calls
    assert "".join(one.arguments_json for one in pieces) == call.arguments_json
    assert {event.action for event in events if event.HasField("tool_call_delta")} == {"tool_call.delta"}
