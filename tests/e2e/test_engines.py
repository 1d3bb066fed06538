"""The whole chain over other engines: a second pagantic by its HTTP gateway, and llama-server, which is killed."""

import contextlib
import json
import signal
import subprocess
import sys
import threading
import uuid

import grpc
import pytest

from deploy.local.probing import probe_health
from pagantic.common.v1 import error_pb2
from pagantic.constraint.v1 import contract_pb2
from pagantic.inference.v1 import inference_service_pb2 as inference_pb
from pagantic.inference.v1 import inference_service_pb2_grpc as inference_rpc
from pagantic.orchestrator.v1 import orchestrator_service_pb2_grpc as rpc
from tests.e2e.conftest import ROOT
from tests.support.live_requests import STORY, infer, is_text, say, schema_of, structured
from tests.support.llama_server import WINDOW, bundled_llama_server
from tests.support.service_process import ServiceProcess

COLOR = schema_of(color={"enum": ["red", "green", "blue"]})
SEA = "The sea is wide. " * 60
LOCAL = "SmolLM2-135M-Instruct.Q4_1"
CACHED = {"token_usage.cached_prompt_tokens"}  # depends on what was asked before


@contextlib.contextmanager
def chain(system, folder, **settings):
    """Run an orchestrator over an inference service of its own; gives a stub of each."""
    with (
        ServiceProcess("inference", system, folder / "inference.log", embedding_model="none", **settings) as inference,
        ServiceProcess(
            "orchestrator",
            system,
            folder / "orchestrator.log",
            inference_address=inference.address,
            journal_url=f"sqlite:///{folder / 'journal.sqlite3'}",
        ) as orchestrator,
        grpc.insecure_channel(inference.address) as inner,
        grpc.insecure_channel(orchestrator.address) as outer,
    ):
        yield rpc.OrchestratorServiceStub(outer), inference_rpc.InferenceServiceStub(inner), inference


@pytest.fixture(scope="module")
def gateway(system):
    command = [sys.executable, "-m", "gateway.cli.main", "serve", "--port", "0"]
    with subprocess.Popen(command, cwd=ROOT, env=system.environment, stderr=subprocess.PIPE, text=True) as process:
        yield process.stderr.readline().split()[1].rstrip(";")
        process.send_signal(signal.SIGTERM)
        process.wait(30)


@pytest.fixture(scope="module")
def behind_gateway(system, gateway, tmp_path_factory):
    remotes = {"far": {"url": gateway, "model": LOCAL, "context_window": 1024}}
    settings = {"model_path": "none", "default_model": "far", "remotes": json.dumps(remotes)}
    with chain(system, tmp_path_factory.mktemp("gateway"), **settings) as stubs:
        yield stubs


@pytest.fixture(scope="module")
def llama_server(tmp_path_factory):
    with bundled_llama_server(tmp_path_factory.mktemp("llama")) as server:
        yield server


@pytest.fixture(scope="module")
def behind_route(system, llama_server, tmp_path_factory):
    remotes = {"big": {"url": llama_server.url, "model": "smol", "context_window": WINDOW}}
    routes = {"best": {"models": ["big", LOCAL]}}
    settings = {
        "remotes": json.dumps(remotes),
        "routes": json.dumps(routes),
        "default_model": "best",
        "tuning": "false",
    }
    with chain(system, tmp_path_factory.mktemp("route"), **settings) as stubs:
        yield stubs


@pytest.fixture
def local(system):
    with grpc.insecure_channel(system.address("orchestrator")) as channel:
        yield rpc.OrchestratorServiceStub(channel)


def execute(stub, request, model=""):
    """Return the response, and the model of the last inference."""
    request.hints.model = model
    *events, last = stub.ExecuteStream(request, timeout=100)
    models = [event.inference_end.model for event in events if event.HasField("inference_end")]
    return last.completed.response, models[-1]


def shape_of(message, path=""):
    """Return the paths of the fields that a message has, without those of its lists."""
    paths = set()
    for field, value in message.ListFields():
        paths.add(f"{path}{field.name}")
        if field.message_type is not None and not field.is_repeated:
            paths |= shape_of(value, f"{path}{field.name}.")
    return paths


@pytest.mark.whole
def test_a_service_without_a_model_of_its_own_serves_those_of_another(behind_gateway):
    _, inference, process = behind_gateway
    models = inference.ListModels(inference_pb.ListModelsRequest(), timeout=30).models
    assert models[0].name == "far"
    assert LOCAL not in [model.name for model in models]
    assert probe_health(process.address) == "SERVING"
    told = inference.DescribeEngine(inference_pb.DescribeEngineRequest(), timeout=30)
    assert "MODEL_PATH is none" in told.note


def test_a_chat_behind_a_gateway_has_the_shape_of_a_chat_here(behind_gateway, local):
    remote, model = execute(behind_gateway[0], say("Say hello.", max_tokens=8))
    here, _ = execute(local, say("Say hello.", max_tokens=8))
    assert not remote.HasField("error")
    assert remote.content
    assert model == "far"
    assert shape_of(remote) | CACHED == shape_of(here) | CACHED


def test_an_output_of_another_engine_is_checked_and_not_claimed_to_be_enforced(behind_gateway, local):
    remote, _ = execute(behind_gateway[0], structured(schema=COLOR, rules=[], max_tokens=40))
    here, _ = execute(local, structured(schema=COLOR, rules=[], max_tokens=40))
    assert json.loads(remote.structured_output_json)["color"] in ("red", "green", "blue")
    assert here.validation.guarantee == contract_pb2.GUARANTEE_ENFORCED
    assert remote.validation.guarantee == contract_pb2.GUARANTEE_VALIDATED


def test_a_conversation_longer_than_the_window_goes_on(behind_gateway):
    session = str(uuid.uuid4())
    for _ in range(4):
        response, _ = execute(behind_gateway[0], say(f"{SEA} Say hello.", session_id=session, max_tokens=8))
        assert not response.HasField("error"), response.error
    assert "history_shortened" in [warning.code for warning in response.warnings]


def test_an_engine_that_is_killed_before_its_first_token_is_followed_by_the_local_model(behind_route, llama_server):
    stub, _, process = behind_route
    before, first = execute(stub, say("Say hello.", max_tokens=8))
    llama_server.kill()
    try:
        after, second = execute(stub, say("Say hello.", max_tokens=8))
        alone, _ = execute(stub, say("Say hello.", max_tokens=8), model="big")
        assert probe_health(process.address) == "SERVING"
    finally:
        llama_server.start()
    _, third = execute(stub, say("Say hello.", max_tokens=8))
    assert (first, second, third) == ("big", LOCAL, "big")
    assert not after.HasField("error")
    assert shape_of(before) | CACHED == shape_of(after) | CACHED
    assert alone.error.code == error_pb2.ERROR_CODE_INFERENCE_MODEL_UNAVAILABLE


def test_an_engine_that_is_killed_after_its_first_token_ends_the_answer_clearly(behind_route, llama_server):
    is_killed = False
    for event in behind_route[0].ExecuteStream(say(STORY, max_tokens=600), timeout=100):
        if is_text(event) and not is_killed:
            llama_server.kill()
            is_killed = True
    llama_server.start()
    assert is_killed
    error = event.completed.response.error
    assert error.code == error_pb2.ERROR_CODE_INFERENCE_MODEL_UNAVAILABLE
    assert "connection broke" in error.message


def test_a_schema_goes_through_llama_server(behind_route):
    response, model = execute(behind_route[0], structured(schema=COLOR, rules=[], max_tokens=40))
    assert model == "big"
    assert json.loads(response.structured_output_json)["color"] in ("red", "green", "blue")
    assert response.validation.guarantee == contract_pb2.GUARANTEE_VALIDATED


def test_a_caller_that_leaves_frees_the_engine(behind_route):
    _, inference, _ = behind_route
    call = infer(inference, STORY, max_tokens=900, model="big")
    assert next(call).HasField("started")
    call.cancel()
    idle = threading.Event()
    for _ in range(100):
        load = inference.GetLoad(inference_pb.GetLoadRequest(), timeout=30)
        if not load.running_sequences:
            break
        idle.wait(0.05)
    assert load.running_sequences == 0
