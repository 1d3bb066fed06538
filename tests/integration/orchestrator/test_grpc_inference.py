"""The orchestrator's side of the inference contract, over a real socket."""

import asyncio
import contextlib

from pagantic.common.v1 import message_pb2, usage_pb2
from pagantic.inference.v1 import generation_pb2
from pagantic.inference.v1 import inference_service_pb2 as pb
from pagantic_common.domain.errors import ErrorCode, Overloaded
from pagantic_common.domain.messages import Message, Role, ToolChoice
from pagantic_common.rpc.channel import open_channel
from services.orchestrator.adapters.inference.grpc_inference import GrpcInference
from services.orchestrator.adapters.journal.writes import entry_from_json, entry_to_json
from services.orchestrator.convert.inference import logprob_to_proto
from services.orchestrator.core.model.request import Hints
from services.orchestrator.core.model.response import CandidateOutput, InferenceOutput
from services.orchestrator.core.model.voting import Voting
from services.orchestrator.core.turn.answering import Infer, Inferred
from services.orchestrator.core.turn.voting import Sample
from tests.support.scripted_peers import ScriptedInference, served

STARTED = pb.InferResponse(
    started=pb.InferenceStarted(
        model=message_pb2.ModelInfo(name="small", context_window=100), prompt_tokens=10, cached_prompt_tokens=4, seed=7
    )
)
USAGE = usage_pb2.TokenUsage(prompt_tokens=10, output_tokens=4)
COMPLETED = pb.InferResponse(completed=pb.InferenceCompleted(usage=USAGE))
ASKED = (Message(Role.USER, "hi"),)


def delta(text="", index=0, tokens=1, **fields):
    return pb.InferResponse(
        delta=pb.CandidateDelta(candidate_index=index, content=text, output_tokens=tokens, **fields)
    )


def end(index=0, reason=generation_pb2.FINISH_REASON_STOP):
    return pb.InferResponse(candidate_end=pb.CandidateEnd(candidate_index=index, finish_reason=reason, output_tokens=2))


async def items(responses, ask):
    async def behave(_number):
        for response in responses:
            yield response

    async with (
        served(ScriptedInference(behave)) as (_, port),
        open_channel(f"127.0.0.1:{port}", max_message_bytes=1 << 20) as channel,
    ):
        return [item async for item in ask(GrpcInference(channel, 1.0))]


async def test_candidates_whose_texts_arrive_in_turns_are_kept_apart():
    responses = [STARTED, delta("a", 0), delta("b", 1), delta("A", 0), end(0), delta("B", 1), end(1), COMPLETED]
    command = Sample(ASKED, "", True, Voting(n=2), 0.7, None)
    prompt, first, second, usage = await items(responses, lambda port: port.sample(command, Hints()))
    assert isinstance(first, CandidateOutput)
    assert (first.output.content, second.output.content) == ("aA", "bB")
    assert (first.output.model, first.output.seed) == ("small", 7)
    assert prompt.prompt_tokens == 10
    assert (first.output.usage.prompt_tokens, first.output.usage.output_tokens) == (0, 2)
    assert usage.output_tokens == 4


async def test_what_an_inference_has_cost_so_far_comes_with_each_delta():
    responses = [STARTED, delta(reasoning="hm", tokens=2), delta("hi", tokens=3), end(), COMPLETED]
    command = Infer(ASKED, (), ToolChoice(), "", None)
    *deltas, output = await items(responses, lambda port: port.infer(command, Hints()))
    assert [one.usage.output_tokens for one in deltas] == [0, 2, 3]
    assert {one.usage.prompt_tokens for one in deltas} == {10}
    assert isinstance(output, InferenceOutput)
    assert (output.reasoning, output.content, output.seed) == ("hm", "hi", 7)


async def test_the_end_of_an_output_says_which_stop_was_met_and_whether_calls_were_held():
    ended = pb.CandidateEnd(
        finish_reason=generation_pb2.FINISH_REASON_TOOL,
        tool_calls=[message_pb2.ToolCall(id="c1", name="clock", arguments_json="{}")],
        matched_stop="END",
        calls_held=True,
    )
    command = Infer(ASKED, (), ToolChoice(), "", None)
    responses = [STARTED, delta("hi"), pb.InferResponse(candidate_end=ended), COMPLETED]
    *_, output = await items(responses, lambda port: port.infer(command, Hints()))
    assert (output.matched_stop, output.calls_held) == ("END", True)
    assert entry_from_json(entry_to_json(Inferred(output))) == Inferred(output)


def full(number_of_refusals):
    """A service whose queue is full for so many calls."""

    async def behave(number):
        if number <= number_of_refusals:
            raise Overloaded("full", code=ErrorCode.INFERENCE_OVERLOADED, retry_after_s=1.0)
        for response in (STARTED, delta("hi"), end(), COMPLETED):
            yield response

    return behave


async def ask_together(behave, count, busy_patience_s):
    command = Infer(ASKED, (), ToolChoice(), "", None)
    async with (
        served(ScriptedInference(behave)) as (service, port),
        open_channel(f"127.0.0.1:{port}", max_message_bytes=1 << 20, waits=["Infer"]) as channel,
    ):
        inference = GrpcInference(channel, 1.0, busy_patience_s)

        async def ask():
            return [item async for item in inference.infer(command, Hints())][-1].content

        return await asyncio.gather(*(ask() for _ in range(count)), return_exceptions=True), service


async def test_inferences_wait_for_room_in_a_full_queue():
    answers, _ = await ask_together(full(5), 4, 10.0)
    assert answers == ["hi"] * 4


async def test_a_model_without_room_holds_up_no_other():
    async def behave(_number, request):
        if request.model == "large":
            raise Overloaded("no memory", code=ErrorCode.INFERENCE_OVERLOADED, retry_after_s=1.0)
        for response in (STARTED, delta("hi"), end(), COMPLETED):
            yield response

    ended = []
    async with (
        served(ScriptedInference(behave, with_request=True)) as (_, port),
        open_channel(f"127.0.0.1:{port}", max_message_bytes=1 << 20, waits=["Infer"]) as channel,
    ):
        inference = GrpcInference(channel, 1.0, 1.0)

        async def ask(model):
            command = Infer(ASKED, (), ToolChoice(), "", None)
            with contextlib.suppress(Overloaded):
                async for _ in inference.infer(command, Hints(model=model)):
                    pass
            ended.append(model)

        await asyncio.gather(*(ask(model) for model in ("large", "large", "small", "small", "small")))
    assert ended == ["small"] * 3 + ["large"] * 2


async def test_an_inference_that_finds_no_room_within_the_patience_is_refused():
    for patience_s in (0.0, 0.3):
        (refused,), _ = await ask_together(full(1000), 1, patience_s)
        assert isinstance(refused, Overloaded)
        assert refused.code is ErrorCode.INFERENCE_OVERLOADED


async def test_log_probabilities_of_parts_of_characters_are_kept():
    top = [generation_pb2.TokenLogprob(token=4, piece=b"\xff", logprob=float("-inf"))]
    logprob = generation_pb2.TokenLogprob(token=3, piece="€".encode()[:2], logprob=-0.5, top=top)
    responses = [STARTED, delta("x", logprobs=[logprob]), end(), COMPLETED]
    command = Infer(ASKED, (), ToolChoice(), "", None)
    *_, output = await items(responses, lambda port: port.infer(command, Hints(top_logprobs=1)))
    kept = entry_from_json(entry_to_json(Inferred(output)))
    assert [logprob_to_proto(one) for one in kept.output.logprobs] == [logprob]
