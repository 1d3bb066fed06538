"""The image and its containers: what is in it, and that a system of them does what `make run` shows."""

import json
import sys

import httpx
import pytest

from deploy.local.demo import EXAMPLES, demo_requests
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.client import Client
from tests.support.containers import podman

TERMINATED = 143  # The gateway ends its calls, and then as the signal would have ended it
PRODUCT_MIB = 32  # A new version of pagantic adds less to a machine that has the last one.


def run(image, script):
    command = ("run", "--rm", "--network", "none", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1000:1000")
    engine = ("--runtime", "runc", "--cgroup-manager", "cgroupfs")
    return podman(*engine, *command, "--entrypoint", "sh", image, "-c", script, check=False)


def test_nothing_in_the_image_builds_or_installs(image):
    for program in ("gcc", "cc", "make", "pip", "pip3", "git", "curl"):
        assert run(image, f"command -v {program}").returncode, program
    assert run(image, "python -m pip --version").returncode
    assert run(image, "id -u").stdout.strip() == "10001"
    assert run(image, "touch /opt/pagantic/x").returncode


def test_only_a_small_layer_changes_with_a_version(image, capsys):
    history = json.loads(podman("history", "--format", "json", image).stdout)
    layers = [(layer["size"] / 2**20, layer["CreatedBy"]) for layer in history if layer["size"]]
    with capsys.disabled():
        sys.stdout.write(
            f"\n{sum(size for size, _ in layers):.0f} MiB in layers of {[round(size) for size, _ in layers]}\n"
        )
    size, step = layers[0]
    assert "COPY" in step
    assert size < PRODUCT_MIB


def test_the_engine_and_the_models_are_found(image):
    done = run(image, "python -c 'import llama_cpp; print(llama_cpp.llama_supports_mmap())' && pagantic --version")
    assert done.returncode == 0, done.stderr
    module = "pagantic.services.inference.adapters.default_model"
    done = run(image, f"python -c 'from {module} import find_default_model; print(find_default_model())'")
    assert done.stdout.strip().endswith(".gguf"), done.stderr


@pytest.fixture
def client(system):
    with Client(f"127.0.0.1:{system.port}", api_key=system.key) as client:
        yield client


@pytest.mark.timeout(400)
def test_containers_answer_every_request_of_the_demo(client):
    client.ingest_files("examples", [EXAMPLES / "incident.txt"])
    for example in demo_requests():
        request = execution_pb2.SystemRequest()
        request.CopyFrom(example.request)
        response = client.execute(request)
        assert not response.HasField("error"), f"{example.title}: {response.error.message}"


def test_the_gateway_answers_with_a_key_alone(system):
    url = f"http://127.0.0.1:{system.http_port}/v1/models"
    assert httpx.get(url, timeout=20).status_code == 401
    reply = httpx.get(url, headers={"authorization": f"Bearer {system.key}"}, timeout=20)
    assert [model["id"] for model in reply.json()["data"]] == ["SmolLM2-135M-Instruct.Q4_1", "all-MiniLM-L6-v2"]


@pytest.mark.timeout(200)
def test_containers_end_by_themselves_when_they_are_asked_to(system):
    for name in system.names:
        system.podman("stop", "--time", "20", system.container(name))
        state = json.loads(system.podman("inspect", system.container(name)).stdout)[0]["State"]
        assert state["ExitCode"] in (0, TERMINATED), f"{name}: {state}"
