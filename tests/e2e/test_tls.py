"""The whole system with TLS from files: it works, its commands work, and strangers do not get in."""

import asyncio
import sys

import grpc
import pytest

from pagantic.orchestrator.v1 import orchestrator_service_pb2_grpc as rpc
from pagantic.tools.v1 import tools_service_pb2 as pb
from pagantic.tools.v1 import tools_service_pb2_grpc as tools_rpc
from tests.soak.turnover import keep_asking
from tests.support.certificates import PREFIX, Authority, TlsFiles
from tests.support.tls_system import TlsSystem

# At each commit, tests/integration/common/test_tls.py tries calls between services.
pytestmark = pytest.mark.whole


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory):
    running = TlsSystem(tmp_path_factory.mktemp("tls"))
    running.run(sys.executable, "-m", "deploy.local", "up")
    yield running
    running.run(sys.executable, "-m", "deploy.local", "down")


def test_commands_connect_with_the_files_of_the_environment(encrypted):
    assert encrypted.run("pagantic", "chat", "Say hello.", "--max-tokens", "8").stdout.strip()
    encrypted.ingest()
    assert "calculator" in encrypted.run("pagantic", "tools").stdout
    assert encrypted.run("pagantic", "models").stdout.strip()
    assert "serving on" in encrypted.run("pagantic", "doctor").stdout
    assert encrypted.run("pagantic", "status").stdout.count("SERVING") == 6


def test_who_has_no_trust_or_no_certificate_is_told_what_to_look_at(encrypted, tmp_path):
    environment = dict(encrypted.environment)
    foreign = TlsFiles(tmp_path / "foreign").write(Authority().issue(PREFIX + "operator"), Authority())
    try:
        encrypted.environment["PAGANTIC_TLS"] = "off"
        in_plain_text = encrypted.run("pagantic", "chat", "hi", check=False)
        encrypted.environment |= foreign.environment
        untrusted = encrypted.run("pagantic", "chat", "hi", check=False)
        encrypted.environment["PAGANTIC_TLS_CA_FILE"] = str(tmp_path / "none")
        without_file = encrypted.run("pagantic", "chat", "hi", check=False)
    finally:
        encrypted.environment = environment
    for refused in (in_plain_text, untrusted, without_file):
        assert refused.returncode
        assert "Traceback" not in refused.stderr
    assert "PAGANTIC_TLS" in in_plain_text.stderr
    assert "PAGANTIC_TLS" in untrusted.stderr
    assert "PAGANTIC_TLS_CA_FILE" in without_file.stderr


def test_only_named_services_call_another(encrypted):
    async def list_tools(certificate):
        certificate = tuple(reversed(certificate))
        credentials = grpc.ssl_channel_credentials(encrypted.operator.authorities.read_bytes(), *certificate)
        async with grpc.aio.secure_channel(encrypted.address("tools"), credentials) as channel:
            return await tools_rpc.ToolServiceStub(channel).ListTools(pb.ListToolsRequest(), timeout=20)

    files = {name: TlsFiles(encrypted.state / "tls" / name) for name in ("orchestrator", "rerank")}
    pairs = {name: (one.chain.read_bytes(), one.key.read_bytes()) for name, one in files.items()}
    assert asyncio.run(list_tools(pairs["orchestrator"])).tools
    with pytest.raises(grpc.aio.AioRpcError) as denied:
        asyncio.run(list_tools(pairs["rerank"]))
    assert denied.value.code() is grpc.StatusCode.PERMISSION_DENIED


def test_certificates_and_authorities_are_replaced_under_load(encrypted):
    async def replace_under_load():
        async with encrypted.channel() as channel:
            return await keep_asking(rpc.OrchestratorServiceStub(channel), encrypted.turnover, seconds=9, clients=2)

    answered, failed = asyncio.run(replace_under_load())
    assert answered
    assert not failed
    assert encrypted.turnover.count >= 3
