"""Every service in one process, on one port, as its user starts it."""

import json
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import grpc
import jsonschema_rs
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pagantic.common.v1 import message_pb2
from pagantic.constraint.v1 import constraint_service_pb2, constraint_service_pb2_grpc, contract_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2_grpc as rpc
from tests.e2e.conftest import ROOT, System

SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
START_S = 90


@contextmanager
def hosting(system):
    """Run the host, and give its process and a channel to it."""
    # Only the door's port counts: the others would collide with nothing, as nobody listens on them.
    command = [sys.executable, "-m", "deploy.local.host"]
    with subprocess.Popen(command, cwd=ROOT, env=system.environment, stderr=subprocess.DEVNULL) as process:
        with grpc.insecure_channel(system.address("orchestrator")) as channel:
            wait_until_serving(channel, process)
            yield process, channel
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


OWN_TOOLS = '''
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from pagantic_common.tools import tool


class Seat(BaseModel):
    row: Annotated[int, Field(ge=1, le=99)]
    beside: "Seat | None" = None


@tool(safety="write")
def book(seats: Annotated[list[Seat], Field(min_length=1, max_length=2)], show: Literal["early", "late"]) -> dict:
    """Books seats in a theatre."""
    return {"booked": len(seats), "show": show}
'''


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    folder = tmp_path_factory.mktemp("host")
    system = System(folder)
    (folder / "theatre.py").write_text(OWN_TOOLS)
    system.environment["PAGANTIC_TOOLS_MODULES"] = str(folder / "theatre.py")
    with hosting(system) as opened:
        yield opened


def wait_until_serving(channel, process):
    stub = health_pb2_grpc.HealthStub(channel)
    end_s = time.monotonic() + START_S
    while time.monotonic() < end_s and process.poll() is None:
        try:
            if stub.Check(health_pb2.HealthCheckRequest(), timeout=5).status == health_pb2.HealthCheckResponse.SERVING:
                return
        except grpc.RpcError:
            time.sleep(0.2)
    raise AssertionError("the host does not serve")


def test_one_port_answers_for_every_service(host):
    _, channel = host
    message = message_pb2.Message(role=message_pb2.ROLE_USER, content="Is it fine?")
    request = execution_pb2.SystemRequest(
        mode=execution_pb2.MODE_STRUCTURED,
        messages=[message],
        output=contract_pb2.OutputContract(schema_json=json.dumps({**SCHEMA, "additionalProperties": False})),
        hints=execution_pb2.ExecutionHints(max_tokens=20, temperature=0),
    )
    response = rpc.OrchestratorServiceStub(channel).Execute(request, timeout=60)
    jsonschema_rs.validate(SCHEMA, json.loads(response.structured_output_json))
    assert response.validation.guarantee == contract_pb2.GUARANTEE_ENFORCED
    constraint = constraint_service_pb2_grpc.ConstraintServiceStub(channel)
    checked = constraint.ValidateJson(constraint_service_pb2.ValidateJsonRequest(text="{}"), timeout=30)
    assert checked.valid
    for service in ("inference.v1.InferenceService", "tools.v1.ToolService", "context.v1.ContextService"):
        health = health_pb2_grpc.HealthStub(channel)
        found = health.Check(health_pb2.HealthCheckRequest(service=f"pagantic.{service}"), timeout=10)
        assert found.status == health_pb2.HealthCheckResponse.SERVING


def test_a_model_calls_a_function_of_the_deployment_with_arguments_of_its_types(host):
    _, channel = host
    message = message_pb2.Message(role=message_pb2.ROLE_USER, content="Book a seat in row 3 for the late show.")
    request = execution_pb2.SystemRequest(
        mode=execution_pb2.MODE_CHAT,
        messages=[message],
        tools=["book", "clock"],
        hints=execution_pb2.ExecutionHints(
            max_tokens=200, temperature=0, tool_choice=message_pb2.ToolChoice(tool_name="book")
        ),
    )
    response = rpc.OrchestratorServiceStub(channel).Execute(request, timeout=60)
    call = response.tool_calls_made[0]
    arguments = json.loads(call.arguments_json)
    assert all(1 <= seat["row"] <= 99 for seat in arguments["seats"])
    assert json.loads(call.result) == {"booked": len(arguments["seats"]), "show": arguments["show"]}


@pytest.mark.whole
def test_a_host_that_asks_for_keys_gives_each_tenant_its_collections(tmp_path):
    system = System(tmp_path)
    admin = system.run("pagantic", "keys", "new").stdout.strip()
    (tmp_path / "admin-key").write_text(admin)
    for name in ("CONTEXT", "TOOLS", "INFERENCE"):
        del system.environment[f"PAGANTIC_{name}_ADDRESS"]
    system.environment |= {
        "PAGANTIC_ORCHESTRATOR_AUTH": "keys",
        "PAGANTIC_ORCHESTRATOR_ADMIN_KEY_FILE": str(tmp_path / "admin-key"),
        "PAGANTIC_API_KEY": admin,
    }
    text = tmp_path / "sea.txt"
    text.write_text("The harbour of Lindau opens at nine.")
    with hosting(system):
        scopes = ("--scopes", "execute,read,write")
        keys = [system.run("pagantic", "keys", "create", "ci", "--tenant", name, *scopes) for name in ("acme", "beta")]
        acme, beta = (key.stdout.strip() for key in keys)
        system.environment["PAGANTIC_API_KEY"] = acme
        assert "1 added" in system.run("pagantic", "ingest", "docs", text).stdout
        assert system.run("pagantic", "chat", "When?", "--context", "docs", "--max-tokens", "4").stdout.strip()
        system.environment["PAGANTIC_API_KEY"] = beta
        assert "docs" not in system.run("pagantic", "collections", "list").stdout
        system.environment["PAGANTIC_API_KEY"] = ""
        del system.environment["PAGANTIC_ORCHESTRATOR_AUTH"]  # the operator's commands would sign
        refused = system.run("pagantic", "collections", "list", check=False)
    assert "AUTH_MISSING" in refused.stderr
