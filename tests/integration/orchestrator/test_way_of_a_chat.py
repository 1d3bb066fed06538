"""A chat passes few functions of ours from the call that brings it to the call of the inference service."""

import asyncio
import sys
from pathlib import Path

from pagantic.inference.v1 import generation_pb2
from pagantic.inference.v1 import inference_service_pb2 as pb
from pagantic_common.rpc.channel import open_channel
from services.orchestrator.adapters.inference.grpc_inference import GrpcInference
from services.orchestrator.app.running.execution import Execution
from tests.support.orchestrator_app import execute, orchestrator, system_request
from tests.support.scripted_peers import ScriptedInference, served
from tests.support.scripted_services import scripted_services

MAX_FUNCTIONS = 12
ROOT = Path(__file__).parents[3]
OURS = (str(ROOT / "services"), str(ROOT / "pagantic_common"))


def functions_to(frame):
    """Return the names of the functions of ours that a frame was reached through, the first one first."""
    names = []
    while frame is not None:
        if frame.f_code.co_filename.startswith(OURS):
            names.append(frame.f_code.co_qualname)
        frame = frame.f_back
    return names[::-1]


async def answer(_number):
    yield pb.InferResponse(started=pb.InferenceStarted(prompt_tokens=1))
    yield pb.InferResponse(delta=pb.CandidateDelta(content="hi", output_tokens=1))
    yield pb.InferResponse(candidate_end=pb.CandidateEnd(finish_reason=generation_pb2.FINISH_REASON_STOP))
    yield pb.InferResponse(completed=pb.InferenceCompleted())


async def test_a_chat_passes_few_functions_from_the_wire_to_the_wire(tmp_path, monkeypatch):
    ways = []

    def make_task(loop, coroutine, **options):
        if getattr(coroutine, "__qualname__", "") == Execution.live.__qualname__:
            ways.append(functions_to(sys._getframe(1)))
        return asyncio.Task(coroutine, loop=loop, **options)

    asyncio.get_running_loop().set_task_factory(make_task)
    async with (
        served(ScriptedInference(answer)) as (_, port),
        open_channel(f"127.0.0.1:{port}", max_message_bytes=1 << 20) as channel,
    ):
        inference = GrpcInference(channel, 1.0)
        infer = inference._stub.Infer

        def called(*arguments, **options):
            ways.append(functions_to(sys._getframe(1)))
            return infer(*arguments, **options)

        monkeypatch.setattr(inference._stub, "Infer", called)
        async with orchestrator(tmp_path, scripted_services(inference=inference)) as stub:
            assert (await execute(stub, system_request())).content == "hi"
    to_the_task, to_the_call = ways
    way = to_the_task + to_the_call
    assert len(way) <= MAX_FUNCTIONS, way
    assert way[1].endswith(".Execute")
    assert way[-2].endswith(".call_stream")
