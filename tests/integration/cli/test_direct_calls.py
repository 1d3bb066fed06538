"""Commands that call services behind the orchestrator directly, where those refuse calls without a token."""

import asyncio
import json
import os

import pytest
from typer.testing import CliRunner

from gateway.cli.main import app
from gateway.cli.operator_token import find_signing_key
from gateway.cli.serving import doctor
from pagantic.context.v1 import collection_pb2, file_pb2
from pagantic.context.v1 import context_service_pb2 as context_pb
from pagantic.context.v1 import context_service_pb2_grpc as context_rpc
from pagantic.inference.v1 import inference_service_pb2 as pb
from pagantic.inference.v1 import inference_service_pb2_grpc as rpc
from pagantic_common.rpc.access.gate import Guard
from pagantic_common.rpc.access.registration import Registration
from pagantic_common.rpc.access.tenant_tokens import read_tenant_tokens, write_key_pair
from pagantic_common.settings import InnerSettings
from pagantic_common.telemetry.scope import current_principal
from pagantic_common.testing.server import serving
from services.context.servicer import SCOPES as CONTEXT_SCOPES
from services.inference.servicer import SCOPES

INFERENCE, CONTEXT = "pagantic.inference.v1.InferenceService", "pagantic.context.v1.ContextService"
COMMANDS = [
    ("models",),
    ("models", "load", "small"),
    ("models", "unload", "small"),
    ("tune",),
    ("collections", "list"),
    ("ingest", "docs", "FILE"),
]


class Inference(rpc.InferenceServiceServicer):
    async def ListModels(self, request, context):
        return pb.ListModelsResponse()

    async def LoadModel(self, request, context):
        return pb.LoadModelResponse()

    async def UnloadModel(self, request, context):
        return pb.UnloadModelResponse()

    async def TuneEngine(self, request, context):
        return pb.TuneEngineResponse()

    async def DescribeEngine(self, request, context):
        return pb.DescribeEngineResponse(state=pb.TUNING_STATE_MEASURED)


class Context(context_rpc.ContextServiceServicer):
    async def ListCollections(self, request, context):
        assert current_principal().tenant == "default"
        return context_pb.ListCollectionsResponse()

    async def IngestFiles(self, requests, context):
        async for _ in requests:
            pass
        summary = file_pb2.FilesSummary(added=1, collection=collection_pb2.Collection(name="docs"))
        yield context_pb.IngestFilesResponse(summary=summary)


class System:
    """Both services with verifying keys, and the environment of a user who may sign."""

    def __init__(self, folder):
        self.folder = folder
        self.signing, self.verifying = write_key_pair(folder / "state" / "identity")
        self.environment = {
            "PAGANTIC_SETTINGS_FILE": "none",
            "PAGANTIC_STATE": str(folder / "state"),
            "PAGANTIC_MODELS_FOLDER": str(folder / "models"),
            "PAGANTIC_API_KEY": "",
            "PAGANTIC_API_KEY_FILE": "",
            "PAGANTIC_ORCHESTRATOR_AUTH": "",
            "PAGANTIC_AUTH": "",
            "PAGANTIC_ORCHESTRATOR_SIGNING_KEY_FILE": "",
        }
        (folder / "a.txt").write_text("the red fox")

    def registrations(self):
        settings = InnerSettings(port=0, verifying_keys_file=self.verifying)
        return [
            Registration(
                INFERENCE,
                lambda server: rpc.add_InferenceServiceServicer_to_server(Inference(), server),
                SCOPES,
                Guard(read_tenant_tokens("inference", settings)),
            ),
            Registration(
                CONTEXT,
                lambda server: context_rpc.add_ContextServiceServicer_to_server(Context(), server),
                CONTEXT_SCOPES,
                Guard(read_tenant_tokens("context", settings)),
            ),
        ]

    async def run(self, address, *command, **environment):
        words = [str(self.folder / "a.txt") if word == "FILE" else word for word in command]
        arguments = [*words, "--address", address]
        environment = {**self.environment, **environment}
        return await asyncio.to_thread(CliRunner().invoke, app, arguments, env=environment)


@pytest.fixture
def system(tmp_path):
    return System(tmp_path)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
async def test_direct_commands_sign_with_the_orchestrators_key(system, command):
    async with serving(system.registrations()) as (_, address):
        refused = await system.run(address, *command)
        assert refused.exit_code == 3, refused.output
        assert "PAGANTIC_ORCHESTRATOR_SIGNING_KEY_FILE" in refused.stderr
        made_by_up = await system.run(address, *command, PAGANTIC_ORCHESTRATOR_AUTH="keys")
        assert made_by_up.exit_code == 0, made_by_up.output
        signing = {"PAGANTIC_ORCHESTRATOR_SIGNING_KEY_FILE": str(system.signing)}
        assert (await system.run(address, *command, **signing)).exit_code == 0


async def test_the_doctor_signs_too(system, monkeypatch):
    registrations = system.registrations()
    async with serving(registrations) as (_, address):
        for name, value in system.environment.items():
            monkeypatch.setenv(name, value)
        assert await asyncio.to_thread(doctor.ask_engine, address) is None
        monkeypatch.setenv("PAGANTIC_AUTH", "keys")
        assert await asyncio.to_thread(doctor.ask_engine, address) is not None


async def test_the_doctor_says_that_the_signing_key_is_unusable(system, tmp_path):
    (tmp_path / "no_key.pem").write_text("no key")
    environment = {**system.environment, "PAGANTIC_ORCHESTRATOR_SIGNING_KEY_FILE": str(tmp_path / "no_key.pem")}
    checked = await asyncio.to_thread(CliRunner().invoke, app, ["doctor", "--json"], env=environment)
    checks = {check["check"]: check for check in json.loads(checked.stdout)["checks"]}
    assert "no_key.pem" in checks["engine tuning"]["found"]


async def test_commands_leave_a_key_alone_that_up_does_not_use(system):
    environment = {"PAGANTIC_AUTH": "keys", "PAGANTIC_STATE": system.environment["PAGANTIC_STATE"]}
    assert find_signing_key(environment) == system.signing
    assert find_signing_key({**environment, "PAGANTIC_VERIFYING_KEYS_FILE": "other.pem"}) is None


async def test_a_token_leaves_this_machine_only_encrypted(system):
    command = ("models", "load", "small")
    refused = await system.run("192.0.2.1:50052", *command, PAGANTIC_ORCHESTRATOR_AUTH="keys")
    assert refused.exit_code == 3
    assert "in plain text" in refused.stderr


async def test_a_printed_token_opens_the_service_that_it_names(system):
    signing = {"PAGANTIC_ORCHESTRATOR_SIGNING_KEY_FILE": str(system.signing)}
    printed = CliRunner().invoke(app, ["keys", "token", "inference", "--expires", "5m"], env={**os.environ, **signing})
    assert printed.exit_code == 0
    async with serving(system.registrations()) as (channel, _):
        metadata = (("authorization", f"Bearer {printed.stdout.strip()}"),)
        await rpc.InferenceServiceStub(channel).LoadModel(pb.LoadModelRequest(), metadata=metadata)
    wrong = CliRunner().invoke(app, ["keys", "token", "orchestrator"], env={**os.environ, **signing})
    assert (wrong.exit_code, "name inference, constraint" in wrong.stderr) == (2, True)
    nobody = CliRunner().invoke(app, ["keys", "token", "tools"], env=system.environment)
    assert (nobody.exit_code, "PAGANTIC_ORCHESTRATOR_SIGNING_KEY_FILE" in nobody.stderr) == (2, True)
