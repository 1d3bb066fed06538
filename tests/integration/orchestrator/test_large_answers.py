"""Answers and responses that are too large for one message end as any other, and harm no other request."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from pagantic.common.v1 import error_pb2, message_pb2
from pagantic.constraint.v1 import contract_pb2
from pagantic.inference.v1 import generation_pb2
from pagantic.inference.v1 import inference_service_pb2 as inference_pb
from pagantic.orchestrator.v1 import execution_pb2, plan_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.domain.defaults import MAX_MESSAGE_BYTES
from pagantic_common.domain.messages import Message, Role, ToolCall, ToolChoice
from pagantic_common.rpc.call import call_stream, call_unary
from pagantic_common.rpc.channel import open_channel
from services.orchestrator.adapters.inference.grpc_inference import GrpcInference
from services.orchestrator.core.model.request import Hints
from services.orchestrator.core.model.response import FinishReason
from services.orchestrator.core.model.voting import Voting
from services.orchestrator.core.turn.answering import Infer
from services.orchestrator.core.turn.voting import Sample
from services.orchestrator.settings import OrchestratorSettings
from tests.support.http_app import data_in, serving_http, text_in
from tests.support.mcp_app import deployment
from tests.support.orchestrator_app import execute, orchestrator, system_request
from tests.support.scripted_peers import ScriptedInference, served
from tests.support.scripted_services import ScriptedConstraint, ScriptedTools, answer, scripted_services
from tests.support.scripted_services import ScriptedInference as ScriptedPort

MIB = 1024 * 1024
PIECE = "é" * (32 * 1024)  # 64 KiB
MOST_PIECES = 1000
STARTED = inference_pb.InferResponse(
    started=inference_pb.InferenceStarted(
        model=message_pb2.ModelInfo(name="small", context_window=10**7), prompt_tokens=10, seed=7
    )
)
STOP = generation_pb2.FINISH_REASON_STOP


def delta(text="", tokens=1, index=0, **fields):
    return inference_pb.InferResponse(
        delta=inference_pb.CandidateDelta(candidate_index=index, content=text, output_tokens=tokens, **fields)
    )


def end(index=0, calls=()):
    return inference_pb.InferResponse(
        candidate_end=inference_pb.CandidateEnd(
            candidate_index=index, finish_reason=STOP, output_tokens=5, tool_calls=calls
        )
    )


COMPLETED = inference_pb.InferResponse(completed=inference_pb.InferenceCompleted())
INFER = Infer((Message(Role.USER, "hi"),), (), ToolChoice(), "", None)


class Talker:
    """Says pieces of 64 KiB until it is stopped, or so many of them where the prompt says `pieces=N`."""

    def __init__(self):
        self.said = self.calls = 0
        self.stopped = asyncio.Event()

    async def __call__(self, number, request):
        self.calls = number
        asked = request.chat.messages[-1].content
        wanted = int(asked.removeprefix("pieces=")) if asked.startswith("pieces=") else MOST_PIECES
        yield STARTED
        try:
            for count in range(1, wanted + 1):
                self.said += 1
                yield delta(PIECE, count)
        finally:
            self.stopped.set()
        yield end()
        yield COMPLETED


@asynccontextmanager
async def inference_of(behave, **fields):
    async with (
        served(ScriptedInference(behave, with_request=True)) as (_, port),
        open_channel(f"127.0.0.1:{port}", max_message_bytes=MAX_MESSAGE_BYTES) as channel,
    ):
        yield GrpcInference(channel, 1.0, **fields)


@asynccontextmanager
async def talking(tmp_path, **services):
    talker = Talker()
    async with (
        inference_of(talker) as inference,
        orchestrator(tmp_path, scripted_services(inference=inference, **services)) as stub,
    ):
        yield stub, talker


async def collect(stub, request):
    return [event async for event in call_stream("orchestrator", stub.ExecuteStream, request, 30)]


async def whole_timeline(stub, request_id):
    """Return all stored events; a large one is a page of its own."""
    events, after = [], 0
    while True:
        asked = pb.GetTimelineRequest(request_id=request_id, after_sequence=after)
        page = await call_unary("orchestrator", stub.GetTimeline, asked)
        events += page.events
        if not page.next_after_sequence:
            return events
        after = page.next_after_sequence


def text_of(events):
    return "".join(event.content_delta.text for event in events)


async def test_an_answer_that_does_not_end_is_stopped_at_a_size_that_every_call_can_carry(tmp_path):
    request = system_request(request_id="r")
    async with talking(tmp_path) as (stub, talker):
        events = await collect(stub, request)
        await asyncio.wait_for(talker.stopped.wait(), 60)
        again = await execute(stub, request)
        found = await call_unary("orchestrator", stub.GetExecution, pb.GetExecutionRequest(request_id="r"))
        stored = await whole_timeline(stub, "r")
        follow = pb.FollowExecutionRequest(request_id="r", after_sequence=events[0].sequence)
        resumed = [event async for event in call_stream("orchestrator", stub.FollowExecution, follow, 30)]
    response = events[-1].completed.response
    assert len(response.content.encode()) == MAX_MESSAGE_BYTES // 2
    assert text_of(events) == response.content
    assert response.finish_reason == generation_pb2.FINISH_REASON_LENGTH
    assert not response.HasField("error")
    [warning] = response.warnings
    assert warning.code == "output_too_large"
    assert f"cut at {MAX_MESSAGE_BYTES // 2} bytes, half of MAX_MESSAGE_BYTES" in warning.message
    assert talker.said < MOST_PIECES, "the engine was stopped, and not only left unread"
    assert again == found.execution.response == stored[-1].completed.response == resumed[-1].completed.response
    assert again == response


async def test_an_answer_below_the_limit_is_whole(tmp_path):
    async with talking(tmp_path) as (stub, _):
        response = (await collect(stub, system_request("pieces=32")))[-1].completed.response
    assert response.content == PIECE * 32
    assert (response.finish_reason, list(response.warnings)) == (STOP, [])


async def test_others_are_answered_beside_an_answer_that_is_too_large(tmp_path):
    async with talking(tmp_path) as (stub, _):
        large, small = await asyncio.gather(
            collect(stub, system_request()), collect(stub, system_request("pieces=1")), return_exceptions=True
        )
    assert large[-1].completed.response.finish_reason == generation_pb2.FINISH_REASON_LENGTH
    assert small[-1].completed.response.content == PIECE


async def test_a_structured_answer_that_is_cut_fails_and_says_why(tmp_path):
    request = system_request(
        mode=execution_pb2.MODE_STRUCTURED, output=contract_pb2.OutputContract(schema_json='{"type":"string"}')
    )
    async with talking(tmp_path, constraint=ScriptedConstraint("é" * MIB)) as (stub, talker):
        response = (await collect(stub, request))[-1].completed.response
    assert response.error.code == error_pb2.ERROR_CODE_INFERENCE_OUTPUT_TRUNCATED
    assert "half of MAX_MESSAGE_BYTES" in response.error.message
    assert talker.calls == 1, "another attempt would be cut at the same place"


async def test_a_conversation_with_a_very_large_answer_goes_on(tmp_path):
    async with talking(tmp_path) as (stub, _):
        await collect(stub, system_request(session_id="s"))
        asked = pb.GetSessionRequest(session_id="s")
        kept = await call_unary("orchestrator", stub.GetSession, asked)
        response = await execute(stub, system_request("pieces=1", session_id="s"))
    assert [len(message.content.encode()) for message in kept.session.messages] == [MAX_MESSAGE_BYTES // 2], "a page"
    assert response.content == PIECE


async def test_a_plan_whose_results_are_too_large_together_fails_alone(tmp_path):
    steps = [plan_pb2.Step(name=f"s{number}", kind="infer", parameters_json="{}") for number in range(4)]
    plan = plan_pb2.ExecutionPlan(steps=steps)
    inference = ScriptedPort(answer("x" * MIB))
    async with orchestrator(tmp_path, scripted_services(inference=inference)) as stub:
        request = system_request(mode=execution_pb2.MODE_PLAN, plan=plan, request_id="p")
        response = (await collect(stub, request))[-1].completed.response
        again = await execute(stub, request)
        stored = await whole_timeline(stub, "p")
        inference.outputs = [answer("fine")]
        assert (await execute(stub, system_request())).content == "fine"
    assert response.error.code == error_pb2.ERROR_CODE_INFERENCE_OUTPUT_TRUNCATED
    assert "can be sent (MAX_MESSAGE_BYTES): ask for less" in response.error.message
    assert response.token_usage.output_tokens == 4 * 3
    assert again == response == stored[-1].completed.response
    assert [event.step_end.name for event in stored if event.action == "step.end"] == ["s0", "s1", "s2", "s3"]


async def test_a_tool_that_returns_much_in_each_round_fails_that_chat_alone(tmp_path):
    tools = ScriptedTools(result="x" * MIB)
    rounds = [answer("", [ToolCall(f"c{number}", "clock", f'{{"n":{number}}}')]) for number in range(4)]
    services = scripted_services(inference=ScriptedPort(*rounds, answer("done")), tools=tools)
    async with orchestrator(tmp_path, services) as stub:
        response = (await collect(stub, system_request()))[-1].completed.response
    assert len(tools.calls) == 4
    assert response.error.code == error_pb2.ERROR_CODE_INFERENCE_OUTPUT_TRUNCATED


async def outputs(responses, ask, max_answer_bytes):
    async def behave(_number, _request):
        for response in responses:
            yield response

    async with inference_of(behave, max_answer_bytes=max_answer_bytes) as inference:
        return [item async for item in ask(inference)]


async def said(responses, max_answer_bytes):
    *deltas, output = await outputs(responses, lambda port: port.infer(INFER, Hints()), max_answer_bytes)
    assert "".join(one.content for one in deltas) == output.content
    assert "".join(one.reasoning for one in deltas) == output.reasoning
    return output


async def test_no_character_is_cut_in_two_and_reasoning_counts_too():
    responses = [STARTED, delta(reasoning="ab"), delta("éé", 2), delta("more", 3), end(), COMPLETED]
    output = await said(responses, 5)
    assert (output.reasoning, output.content, output.finish_reason) == ("ab", "é", FinishReason.LENGTH)
    assert (output.max_bytes, output.usage.output_tokens, output.model) == (5, 2, "small")
    assert (await said([STARTED, delta(reasoning="abcdefg"), end(), COMPLETED], 5)).reasoning == "abcde"
    whole = await said([STARTED, delta(reasoning="ab"), delta("éb"), end(), COMPLETED], 5)
    assert (whole.content, whole.finish_reason, whole.max_bytes) == ("éb", FinishReason.STOP, 0)


async def test_an_answer_or_a_candidate_that_was_cut_does_not_go_on_after_a_gap():
    parts = [delta("abcd", 1, 0), delta("é", 2, 0), delta("x", 3, 0)]
    command = Sample(INFER.messages, "", True, Voting(n=1), 0.7, None)
    found = await outputs(
        [STARTED, *parts, end(0), COMPLETED], lambda port: port.sample(command, Hints()), max_answer_bytes=5
    )
    output = found[1].output
    assert (output.content, output.finish_reason, output.max_bytes) == ("abcd", FinishReason.LENGTH, 5)
    output = await said([STARTED, delta("x", reasoning="abcdé"), end(), COMPLETED], 5)
    assert (output.reasoning, output.content) == ("abcd", "")


async def test_log_probabilities_count_and_spell_what_is_left():
    token = generation_pb2.TokenLogprob(token=4, piece=b"ab", logprob=-0.5)
    responses = [STARTED, *(delta("ab", count, logprobs=[token]) for count in (1, 2, 3)), end(), COMPLETED]
    output = await said(responses, 80)
    assert (output.content, len(output.logprobs), output.finish_reason) == ("abab", 2, FinishReason.LENGTH)


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_a_call_whose_arguments_are_too_large_is_not_made(is_streamed):
    arguments = '{"a":"' + "x" * 100 + '"}'
    call = message_pb2.ToolCall(id="c", name="clock", arguments_json=arguments)
    piece = {"index": 0, "id": "c", "name": "clock", "arguments_json": arguments}
    pieces = [delta(tool_calls=[piece])] if is_streamed else []
    output = await said([STARTED, *pieces, end(calls=[call]), COMPLETED], 50)
    assert (output.tool_calls, output.finish_reason, output.max_bytes) == ((), FinishReason.LENGTH, 50)
    fitting = await said([STARTED, *pieces, end(calls=[call]), COMPLETED], 200)
    assert [one.arguments_json for one in fitting.tool_calls] == [arguments]


async def test_of_a_candidate_that_is_too_large_the_rest_is_left_out_and_the_others_are_whole():
    responses = [STARTED, delta("abc", 1, 0), delta("a", 1, 1), delta("def", 2, 0), delta("x", 3, 0), delta("b", 2, 1)]
    command = Sample(INFER.messages, "", True, Voting(n=2), 0.7, None)
    found = await outputs(
        [*responses, end(0), end(1), COMPLETED], lambda port: port.sample(command, Hints()), max_answer_bytes=5
    )
    first, second = (one.output for one in found[1:3])
    assert (first.content, first.finish_reason, first.max_bytes) == ("abcde", FinishReason.LENGTH, 5)
    assert (second.content, second.finish_reason) == ("ab", FinishReason.STOP)


def test_one_message_carries_a_response_and_with_a_request_of_at_most_half_a_message_both():
    for message_bytes, request_bytes in ((4 * MIB, MIB), (4 * MIB, 16 * MIB), (64 * MIB, MIB), (1024, 1024)):
        settings = OrchestratorSettings(max_message_bytes=message_bytes, max_request_bytes=request_bytes)
        assert settings.max_answer_bytes <= settings.max_response_bytes <= settings.max_message_bytes
        is_room_for_both = settings.max_response_bytes + settings.max_request_bytes < settings.max_message_bytes
        assert is_room_for_both == (2 * request_bytes < message_bytes)
    assert settings.max_answer_bytes == 512


async def test_over_http_an_answer_that_is_too_large_ends_as_one_that_was_cut(tmp_path):
    async with (
        inference_of(Talker()) as inference,
        deployment(tmp_path, scripted_services(inference=inference)) as world,
        serving_http(world) as server,
    ):
        async with server.chat_stream() as response:
            chunks = data_in((await response.aread()).decode())
        whole = (await server.chat()).json()
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    [choice] = whole["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] == text_in(chunks)
    assert len(text_in(chunks).encode()) == MAX_MESSAGE_BYTES // 2
