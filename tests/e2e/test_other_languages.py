"""The system as clients see it that have no proto file of ours: Node, and grpcurl."""

import json
import shutil
import subprocess
import time
from pathlib import Path

import jsonschema_rs
import pytest

from pagantic.orchestrator.v1 import execution_pb2
from tests.support.node_packages import installed

NODE = Path(__file__).parent / "node"
PROVIDER = Path(__file__).parents[2] / "deploy" / "examples" / "tool_provider"
TOOLS = "pagantic.tools.v1.ToolService"
ORCHESTRATOR = "pagantic.orchestrator.v1.OrchestratorService"
SCHEMA = {
    "type": "object",
    "properties": {"color": {"enum": ["red", "green", "blue"]}, "is_warm": {"type": "boolean"}},
    "required": ["color", "is_warm"],
    "additionalProperties": False,
}


@pytest.fixture(scope="session")
def node_client():
    return installed(NODE) / "client.mjs"


@pytest.fixture
def provider(system):
    """The example of a program that offers tools, once it has offered them."""
    program = installed(PROVIDER) / "provider.mjs"
    command = [shutil.which("node"), program, system.address("tools")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert "node_slug" in running.stdout.readline()
        yield running
        running.kill()


def test_a_node_client_with_stubs_from_reflection_does_everything(system, node_client):
    seen = json.loads(system.run("node", node_client, system.address("orchestrator")).stdout)
    assert {ORCHESTRATOR, "grpc.health.v1.Health"} <= set(seen["services"])
    assert seen["health"] == "SERVING"
    assert seen["kinds"][0] == "transition"
    assert seen["kinds"][-1] == "completed"
    assert "content_delta" in seen["kinds"]
    for response in (seen["response"], seen["streamed"]):
        assert response["validation"]["guarantee"] == "GUARANTEE_ENFORCED"
        jsonschema_rs.validate(SCHEMA, json.loads(response["structured_output_json"]))
    assert seen["refusal"]["code"] == 3
    assert "messages is empty" in seen["refusal"]["details"]


@pytest.mark.parametrize(
    "seconds", [10, pytest.param(140, marks=pytest.mark.whole)], ids=["some pings", "longer than two minutes"]
)
def test_a_node_client_with_keepalive_keeps_its_long_calls(system, node_client, seconds):
    areas = ("orchestrator", "inference", "constraint", "context", "rerank", "tools")
    addresses = [system.address(area) for area in areas]
    done = system.run("node", node_client.with_name("keepalive.mjs"), str(seconds), *addresses, timeout_s=seconds + 60)
    assert json.loads(done.stdout) == []


def grpcurl(system, *arguments, area="orchestrator", check=True):
    done = system.run("grpcurl", "-plaintext", *arguments[:-1], system.address(area), *arguments[-1], check=check)
    return done.stdout if check else done.stdout + done.stderr


def test_grpcurl_lists_the_services_of_each_process(system):
    expected = {
        "orchestrator": ORCHESTRATOR,
        "inference": "pagantic.inference.v1.InferenceService",
        "constraint": "pagantic.constraint.v1.ConstraintService",
        "context": "pagantic.context.v1.ContextService",
        "rerank": "pagantic.rerank.v1.RerankService",
        "tools": "pagantic.tools.v1.ToolService",
    }
    for area, service in expected.items():
        listed = grpcurl(system, ["list"], area=area).split()
        assert {service, "grpc.health.v1.Health"} <= set(listed)
        assert "SERVING" in grpcurl(system, ["grpc.health.v1.Health/Check"], area=area)


def test_what_grpcurl_describes_reads_as_documentation(system):
    described = grpcurl(system, ["describe", "pagantic.orchestrator.v1.SystemRequest"])
    assert "Minimal request: mode and one user message." in described
    fields = [line for line in described.splitlines() if line.rstrip().endswith(";")]
    comments = [line for line in described.splitlines() if line.lstrip().startswith("//")]
    assert len(comments) >= len(fields) == len(execution_pb2.SystemRequest.DESCRIPTOR.fields)


def test_grpcurl_runs_a_structured_request_and_reads_the_stream(system):
    request = {
        "request_id": "grpcurl-1",
        "mode": "MODE_STRUCTURED",
        "messages": [{"role": "ROLE_USER", "content": "Which color is the sky?"}],
        "output": {"schema_json": json.dumps(SCHEMA)},
        "hints": {"max_tokens": 60, "temperature": 0},
    }
    response = json.loads(grpcurl(system, "-d", json.dumps(request), [f"{ORCHESTRATOR}/Execute"]))
    jsonschema_rs.validate(SCHEMA, json.loads(response["structuredOutputJson"]))
    assert response["validation"]["guarantee"] == "GUARANTEE_ENFORCED"
    streamed = grpcurl(system, "-d", json.dumps(request), [f"{ORCHESTRATOR}/ExecuteStream"])
    assert '"completed"' in streamed


@pytest.mark.parametrize(
    ("request_", "status", "wrong"),
    [
        ({"mode": "MODE_CHAT"}, "InvalidArgument", "messages is empty"),
        ({"messages": [{"role": "ROLE_USER", "content": "x"}]}, "InvalidArgument", "mode is not set"),
        ({"mode": "MODE_CHAT", "messages": [{"content": "x"}]}, "InvalidArgument", "role is not set"),
        (
            {"mode": "MODE_CHAT", "messages": [{"role": "ROLE_USER", "content": "x"}], "prompt": {"template": {}}},
            "InvalidArgument",
            "prompt.template.name",
        ),
    ],
)
def test_grpcurl_shows_what_is_wrong_with_a_malformed_request(system, request_, status, wrong):
    shown = grpcurl(system, "-d", json.dumps(request_), [f"{ORCHESTRATOR}/Execute"], check=False)
    assert f"Code: {status}" in shown
    assert wrong in shown


def call_slug(system, title):
    call = {"id": "1", "name": "node_slug", "arguments_json": json.dumps({"title": title})}
    return json.loads(grpcurl(system, "-d", json.dumps({"call": call}), [f"{TOOLS}/ExecuteTool"], area="tools"))


def test_a_node_program_offers_a_tool_that_is_gone_with_it(system, provider):
    assert call_slug(system, "Crème brûlée, at last!")["result"]["content"] == "creme-brulee-at-last"
    assert "no letter or digit" in call_slug(system, "!")["result"]["content"]
    assert call_slug(system, 7)["error"]["code"] == "ERROR_CODE_TOOL_INVALID_ARGUMENTS"
    chat = system.run("pagantic", "chat", "Make a slug of: Hello World", "--tool-choice", "node_slug", check=False)
    assert "tool node_slug(" in chat.stderr
    provider.kill()
    provider.wait()
    for _ in range(100):
        if call_slug(system, "Hello")["error"]["code"] == "ERROR_CODE_TOOL_NOT_FOUND":
            return
        time.sleep(0.05)
    raise AssertionError("the tool outlived its program")
