"""An inference changes nothing, so one whose service is lost begins again: unseen before its text, told of after it."""

import asyncio
from contextlib import aclosing

import pytest

from pagantic.common.v1 import error_pb2
from pagantic.inference.v1 import inference_service_pb2 as inference_pb
from pagantic_common.domain.errors import ErrorCode, Unavailable
from pagantic_common.domain.messages import Message, Role, ToolChoice
from pagantic_common.rpc.call import call_stream
from pagantic_common.rpc.channel import open_channel
from pagantic_common.rpc.status import Unreachable
from services.orchestrator.adapters.grpc_inference import GrpcInference
from services.orchestrator.core.request import Hints
from services.orchestrator.core.run import Infer
from tests.support.orchestrator_app import execute, orchestrator, system_request, timeline
from tests.support.ports import free_ports
from tests.support.scripted_peers import ScriptedInference as Peer
from tests.support.scripted_peers import served
from tests.support.scripted_services import ScriptedInference, answer, scripted_services

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
LOST = Unavailable("the inference service cannot be reached")


class LosingInference(ScriptedInference):
    """Gives some text and is lost, as often as it is told to; then it answers."""

    def __init__(self, *losses):
        super().__init__(answer("all of it"))
        self.losses = list(losses)

    async def infer(self, command, hints):
        if self.losses:
            self.commands.append(command)
            yield "a part"
            raise self.losses.pop(0)
        async for piece in super().infer(command, hints):
            yield piece


async def test_a_chat_whose_inference_is_lost_in_the_middle_of_its_text_answers_and_tells_what_no_longer_counts(
    tmp_path,
):
    inference = LosingInference(LOST)
    async with orchestrator(tmp_path, scripted_services(inference=inference)) as stub:
        request = system_request(request_id="r")
        events = [event async for event in call_stream("orchestrator", stub.ExecuteStream, request)]
        stored = await timeline(stub, "r")
    kinds = [event.WhichOneof("event") for event in events]
    discarded = kinds.index("attempt_discarded")
    assert "cannot be reached" in events[discarded].attempt_discarded.reason
    after = "".join(event.content_delta.text for event in events[discarded:])
    assert after == events[-1].completed.response.content.replace(" ", "")
    assert not events[-1].completed.response.HasField("error")
    assert [event.action for event in stored].count("inference.end") == 1


@pytest.mark.parametrize("losses", [(LOST, LOST), (Unavailable("gone", code=ErrorCode.INFERENCE_MODEL_UNAVAILABLE),)])
async def test_what_is_lost_again_or_says_that_its_model_is_gone_fails(tmp_path, losses):
    inference = LosingInference(*losses)
    async with orchestrator(tmp_path, scripted_services(inference=inference)) as stub:
        response = await execute(stub, system_request())
    assert response.error.category in (
        error_pb2.ERROR_CATEGORY_ORCHESTRATION_FAILURE,
        error_pb2.ERROR_CATEGORY_INFERENCE_FAILURE,
    )
    assert len(inference.commands) == len(losses)


def delta(text):
    return inference_pb.InferResponse(delta=inference_pb.CandidateDelta(content=text))


async def whole(_call):
    yield inference_pb.InferResponse(started=inference_pb.InferenceStarted())
    yield delta("all of it")
    yield inference_pb.InferResponse(candidate_end=inference_pb.CandidateEnd(finish_reason=1))
    yield inference_pb.InferResponse(completed=inference_pb.InferenceCompleted())


@pytest.mark.parametrize(("is_streamed", "begins_again"), [(False, True), (True, False)])
async def test_text_that_nobody_was_told_begins_again_without_a_word(is_streamed, begins_again):
    async def part(_call):
        yield inference_pb.InferResponse(started=inference_pb.InferenceStarted())
        yield delta("a part")
        reached.set()
        await asyncio.Event().wait()

    async def collect():
        messages = (Message(Role.USER, "hi"),)
        command = Infer(messages, (), ToolChoice(), engine_text="", seed=None, is_streamed=is_streamed)
        async with aclosing(adapter.infer(command, Hints())) as pieces:
            return [piece async for piece in pieces]

    reached = asyncio.Event()
    (port,) = free_ports(1)
    async with open_channel(f"127.0.0.1:{port}", max_message_bytes=MAX_MESSAGE_BYTES) as channel:
        adapter = GrpcInference(channel, patience_s=20.0)
        async with served(Peer(part), port=port):
            running = asyncio.create_task(collect())
            await reached.wait()
            await asyncio.sleep(0.1)
        async with served(Peer(whole), port=port):
            if begins_again:
                assert [piece.content for piece in await running] == ["all of it"]
            else:
                with pytest.raises(Unreachable):
                    await running
