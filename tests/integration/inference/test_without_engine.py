"""A service in whose process llama_cpp cannot be imported: other engines answer."""

import asyncio
import json
import os
import sys

import grpc
import pytest

from pagantic.common.v1 import message_pb2
from pagantic.inference.v1 import generation_pb2
from pagantic.inference.v1 import inference_service_pb2 as pb
from pagantic.inference.v1 import inference_service_pb2_grpc as pb_grpc
from tests.support.engine_server import engine_server
from tests.support.ports import free_ports
from tests.support.remote_app import remote

START = "import sys; sys.modules['llama_cpp'] = None; from services.inference.__main__ import main; main()"


async def start(**settings):
    environment = {f"PAGANTIC_INFERENCE_{name.upper()}": str(value) for name, value in settings.items()}
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        START,
        env=os.environ | environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )


async def test_the_models_of_other_engines_are_served():
    (port,) = free_ports(1)
    async with engine_server() as engine:
        remotes = json.dumps({"far": remote(engine.url)})
        process = await start(port=port, model_path="none", default_model="far", remotes=remotes)
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                stub = pb_grpc.InferenceServiceStub(channel)
                listed = await stub.ListModels(pb.ListModelsRequest(), wait_for_ready=True, timeout=60)
                said = message_pb2.Message(role=message_pb2.ROLE_USER, content="hi")
                request = pb.InferRequest(chat=generation_pb2.ChatPrompt(messages=[said]))
                answer = [event.delta.content async for event in stub.Infer(request, timeout=30)]
                described = await stub.DescribeEngine(pb.DescribeEngineRequest(), timeout=30)
        finally:
            process.terminate()
            log = (await process.communicate())[0].decode()
    assert [model.name for model in listed.models] == ["far"]
    assert "".join(answer) == "hello"
    assert list(described.loaded_models) == ["far"]
    assert process.returncode == 0, log


@pytest.mark.parametrize("settings", [{}, {"model_path": "none"}, {"model_path": "none", "models": '{"m": "m.gguf"}'}])
async def test_a_model_to_decode_here_ends_the_start(settings):
    remotes = json.dumps({"far": remote("http://127.0.0.1:9/v1")}) if "models" in settings else "{}"
    process = await start(port=0, default_model="far" if "models" in settings else "", remotes=remotes, **settings)
    log = (await process.communicate())[0].decode()
    assert process.returncode == 78
    assert "pip install 'pagantic[server,engine]'" in log
