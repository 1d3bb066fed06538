"""TLS from files over real sockets: who gets in, who does not, and how certificates are replaced while calls run."""

import asyncio
import itertools
import re
import time
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace

import grpc
import pytest

from pagantic.inference.v1 import inference_service_pb2 as inference_pb
from pagantic.inference.v1 import inference_service_pb2_grpc as inference_rpc
from pagantic.tools.v1 import tools_service_pb2 as pb
from pagantic.tools.v1 import tools_service_pb2_grpc as rpc
from pagantic_common.domain.calls.principal import Scope
from pagantic_common.domain.errors import (
    ErrorCode,
    InvalidRequest,
    PaganticError,
    PermissionDenied,
    Unauthenticated,
    Unreachable,
)
from pagantic_common.rpc.access import watched_file
from pagantic_common.rpc.access.gate import Guard
from pagantic_common.rpc.access.registration import Registration
from pagantic_common.rpc.access.tls.calling import find_target
from pagantic_common.rpc.access.tls.certificates import CertificateFiles, parse_certificates
from pagantic_common.rpc.access.tls.renewed_channel import open_service_channel
from pagantic_common.rpc.access.tls.service_callers import CALLERS, guard_of
from pagantic_common.rpc.call import call_unary
from pagantic_common.rpc.channel import open_channel
from pagantic_common.rpc.peer import Peer
from pagantic_common.rpc.probe import ask_health
from pagantic_common.rpc.process.server import start_server
from pagantic_common.rpc.service_config import is_retried
from pagantic_common.settings import InnerSettings, load_settings
from pagantic_common.telemetry.scope import current_principal
from services.inference.settings import InferenceSettings
from services.orchestrator.ports.identity import CertificateCaller
from services.orchestrator.wiring.access import CertificateCallers
from tests.support.certificates import HOUR, PREFIX, Authority, TlsFiles, Turnover, now
from tests.support.doors import open_to_all
from tests.support.scripted_peers import ScriptedInference, ScriptedTools

TOOLS = "pagantic.tools.v1.ToolService"
MAX_BYTES = 4 * 1024 * 1024
ORCHESTRATOR, TOOLS_ID = PREFIX + "orchestrator", PREFIX + "tools"


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch):
    monkeypatch.setattr(watched_file, "LOOK_S", 0.0)


@pytest.fixture(scope="module")
def authority():
    return Authority()


@pytest.fixture
def tools_files(tmp_path, authority):
    return TlsFiles(tmp_path / "tools").write(authority.issue(TOOLS_ID), authority)


@pytest.fixture
def caller_files(tmp_path, authority):
    return TlsFiles(tmp_path / "caller").write(authority.issue(ORCHESTRATOR), authority)


async def at_once(_number):
    """Answer at once."""


@asynccontextmanager
async def serving(files, *registrations):
    settings = InnerSettings(port=0, **files.settings)
    guard = Guard(peers=guard_of("tools", settings).peers)
    services = registrations or [ScriptedTools(at_once).registration()]
    services = [replace(one, guard=guard) for one in services]
    server, _health, port = await start_server(settings, services)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(grace=0)


def channel_to(address, files):
    settings = InnerSettings(port=0, **files.settings)
    return open_service_channel(address, settings)


async def list_tools(channel):
    stub = rpc.ToolServiceStub(channel)
    return await call_unary("tools", stub.ListTools, pb.ListToolsRequest(), 5)


async def test_a_service_is_called_by_those_of_its_table(tools_files, tmp_path, authority):
    async with serving(tools_files) as address:
        for name in ("orchestrator", "operator"):
            files = TlsFiles(tmp_path / name).write(authority.issue(PREFIX + name), authority)
            async with channel_to(address, files) as channel:
                assert await list_tools(channel) == pb.ListToolsResponse()


@pytest.mark.parametrize(
    "ids",
    [
        [PREFIX + "constraint"],
        [PREFIX + "orchestrator/x"],
        ["spiffe://elsewhere/ns/pagantic/sa/orchestrator"],
        [],
        [ORCHESTRATOR, PREFIX + "constraint"],
    ],
    ids=["another service", "a longer id", "another domain", "no id", "two ids"],
)
async def test_others_are_denied_in_the_same_words(ids, tools_files, tmp_path, authority):
    files = TlsFiles(tmp_path / "other").write(authority.issue(*ids), authority)
    async with serving(tools_files) as address, channel_to(address, files) as channel:
        with pytest.raises(PaganticError) as denied:
            await list_tools(channel)
    if len(ids) > 1:  # not a SPIFFE certificate at all
        assert isinstance(denied.value, PermissionDenied | Unreachable)
        return
    assert denied.value.code is ErrorCode.AUTH_DENIED
    assert str(denied.value).endswith("the caller's certificate is not one of a service that may call this one")


LATER = {"begin": now() + HOUR, "end": now() + 2 * HOUR}
EARLIER = {"begin": now() - 2 * HOUR, "end": now() - HOUR}


@pytest.mark.parametrize("validity", [LATER, EARLIER], ids=["not yet valid", "expired"])
@pytest.mark.parametrize("who", ["caller", "service"])
async def test_a_certificate_out_of_its_time_connects_nobody(who, validity, tmp_path, authority):
    files = {
        name: TlsFiles(tmp_path / name).write(
            authority.issue(spiffe_id, **(validity if name == who else {})), authority
        )
        for name, spiffe_id in (("caller", ORCHESTRATOR), ("service", TOOLS_ID))
    }
    async with serving(files["service"]) as address, channel_to(address, files["caller"]) as channel:
        with pytest.raises(Unreachable):
            await list_tools(channel)


async def test_a_certificate_that_expires_during_a_connection_makes_no_further_call(
    tools_files, caller_files, monkeypatch
):
    released, reached = asyncio.Event(), asyncio.Event()

    async def first_waits(number):
        if number == 1:
            reached.set()
            await released.wait()

    tools = ScriptedTools(first_waits)
    async with serving(tools_files, tools.registration()) as address, channel_to(address, caller_files) as channel:
        running = asyncio.ensure_future(list_tools(channel))
        await reached.wait()
        await list_tools(channel)
        expired_s = time.time() + 2 * HOUR.total_seconds()
        monkeypatch.setattr(time, "time", lambda: expired_s)
        with pytest.raises(Unauthenticated, match="certificate has expired: connect again with a new") as refused:
            await list_tools(channel)
        monkeypatch.undo()
        released.set()
        await running
    assert refused.value.code is ErrorCode.AUTH_EXPIRED
    assert tools.calls == 2


@pytest.mark.parametrize("who", ["caller", "service"])
async def test_the_certificate_of_a_foreign_authority_connects_nobody(who, tmp_path, authority):
    foreign = Authority("tests")
    files = {
        name: TlsFiles(tmp_path / name).write((foreign if name == who else authority).issue(spiffe_id), authority)
        for name, spiffe_id in (("caller", ORCHESTRATOR), ("service", TOOLS_ID))
    }
    async with serving(files["service"]) as address, channel_to(address, files["caller"]) as channel:
        with pytest.raises(Unreachable):
            await list_tools(channel)


async def test_without_a_certificate_or_in_plain_text_nobody_connects(tools_files):
    only_trusts = grpc.ssl_channel_credentials(tools_files.authorities.read_bytes())
    async with serving(tools_files) as address:
        for credentials in (only_trusts, None):
            async with open_channel(address, max_message_bytes=MAX_BYTES, credentials=credentials) as channel:
                with pytest.raises(Unreachable):
                    await list_tools(channel)


async def test_a_service_of_another_name_is_not_trusted(tools_files, caller_files):
    async with serving(tools_files) as address:
        port = address.rpartition(":")[2]
        async with channel_to(f"127.0.0.2:{port}", caller_files) as channel:  # reached, with a certificate for .0.1
            with pytest.raises(Unreachable):
                await list_tools(channel)


async def test_a_probe_takes_the_files_of_the_environment(tools_files, caller_files):
    async with serving(tools_files) as address:
        health = await asyncio.to_thread(ask_health, address, "", caller_files.environment)
        in_plain_text = await asyncio.to_thread(ask_health, address, "", {})
    assert (health, in_plain_text) == ("SERVING", "")


class Whose(ScriptedTools):
    """Remembers its callers."""

    def __init__(self):
        super().__init__(at_once)
        self.callers = []

    async def take(self):
        self.callers.append(current_principal())


class Refusing:
    """Knows nobody by credentials."""

    async def authenticate(self, credentials):
        raise PermissionDenied(f"not by {credentials!r}")


async def test_a_caller_is_known_by_its_certificate(tools_files, tmp_path, authority):
    billing, other = "spiffe://example.com/billing", "spiffe://example.com/other"
    served = Whose()
    peers = CertificateCallers({billing: CertificateCaller("acme", frozenset({Scope.EXECUTE}))})
    door = Registration(TOOLS, served.registration().add_to, open_to_all(TOOLS), Guard(Refusing(), peers))
    server, _health, port = await start_server(InnerSettings(port=0, **tools_files.settings), [door])
    try:
        for spiffe_id in (billing, other):
            files = TlsFiles(tmp_path / spiffe_id[-5:]).write(authority.issue(spiffe_id), authority)
            async with channel_to(f"127.0.0.1:{port}", files) as channel:
                if spiffe_id == billing:
                    await list_tools(channel)
                    stub = rpc.ToolServiceStub(channel)
                    with pytest.raises(PermissionDenied, match="not by 'Bearer x'"):  # credentials come first
                        await call_unary("tools", stub.ListTools, pb.ListToolsRequest(), 5, credentials="Bearer x")
                else:
                    with pytest.raises(PermissionDenied, match="not by ''"):
                        await list_tools(channel)
    finally:
        await server.stop(grace=0)
    assert [(caller.tenant, caller.subject, caller.scopes) for caller in served.callers] == [
        ("acme", billing, frozenset({Scope.EXECUTE}))
    ]


# ---- replacement


def ended(tokens):
    return inference_pb.InferResponse(candidate_end=inference_pb.CandidateEnd(output_tokens=tokens))


async def test_certificates_and_authorities_are_replaced_while_calls_run(tmp_path):
    files = {TOOLS_ID: TlsFiles(tmp_path / "tools"), ORCHESTRATOR: TlsFiles(tmp_path / "caller")}
    turnover = Turnover(files)
    released = asyncio.Event()

    async def stream(_number):
        yield ended(1)
        await released.wait()
        yield ended(2)

    services = [ScriptedTools(at_once).registration(), ScriptedInference(stream).registration()]
    async with serving(files[TOOLS_ID], *services) as address, channel_to(address, files[ORCHESTRATOR]) as channel:
        peer = Peer("tools", channel, patience_s=5)
        stub = rpc.ToolServiceStub(channel)
        infer = inference_rpc.InferenceServiceStub(channel).Infer
        channels = set()
        async with aclosing(
            Peer("inference", channel, patience_s=5).call_stream(infer, inference_pb.InferRequest())
        ) as (long):
            assert (await anext(long)) == ended(1)
            for _ in range(12):
                before = channel.current()
                turnover.replace()
                while channel.current() is before:
                    await asyncio.gather(*(peer.call_unary(stub.ListTools, pb.ListToolsRequest()) for _ in range(10)))
                channels.add(channel.current())
            released.set()
            assert (await anext(long)) == ended(2)
    assert len(channels) == 12


async def test_a_replaced_channel_is_closed_after_its_last_call(tools_files, caller_files, authority):
    released = asyncio.Event()

    async def first_waits(number):
        if number == 1:
            await released.wait()

    tools = ScriptedTools(first_waits)
    async with serving(tools_files, tools.registration()) as address, channel_to(address, caller_files) as channel:
        old = channel.current()
        waiting = asyncio.ensure_future(list_tools(channel))
        await tools.reached.wait()
        caller_files.write(authority.issue(ORCHESTRATOR), authority)
        while channel.current() is old:
            await list_tools(channel)
        assert old.get_state() is grpc.ChannelConnectivity.READY
        released.set()
        await waiting
        async with asyncio.timeout(60):
            while old.get_state() is not grpc.ChannelConnectivity.SHUTDOWN:  # noqa: ASYNC110 - nothing else tells
                await asyncio.sleep(0.01)


async def test_a_replacement_that_does_not_fit_changes_nothing(tools_files, caller_files, authority):
    async with serving(tools_files) as address, channel_to(address, caller_files) as channel:
        right = caller_files.key.read_bytes()
        before = channel.current()
        for wrong in (authority.issue(ORCHESTRATOR)[1], b"", b"-----BEGIN PRIVATE KEY-----\nAA\n"):
            caller_files.key.write_bytes(wrong)
            await list_tools(channel)
            assert channel.current() is before
        caller_files.key.unlink()
        await list_tools(channel)
        caller_files.key.write_bytes(right)
        await list_tools(channel)


async def test_methods_of_a_renewed_channel_are_retried_like_others(caller_files):
    async with channel_to("127.0.0.1:1", caller_files) as channel:
        assert is_retried(rpc.ToolServiceStub(channel).ListTools)
        assert not is_retried(rpc.ToolServiceStub(channel).ExecuteTool)


# ---- files and settings


def test_what_does_not_belong_together_is_refused_by_name(authority):
    chain, key = authority.issue(TOOLS_ID)
    other_chain, other_key = authority.issue(TOOLS_ID)
    assert parse_certificates(chain, key, authority.pem).expires_at > now().timestamp()
    for parts, said in (
        ((b"", key, authority.pem), "TLS_CERT_FILE does not hold a certificate"),
        ((chain, b"", authority.pem), "TLS_KEY_FILE does not hold a private key"),
        ((chain, chain, authority.pem), "TLS_KEY_FILE does not hold a private key"),
        ((chain, key, b"x"), "TLS_CA_FILE does not hold a certificate"),
        ((chain, other_key, authority.pem), "is not that of the certificate of TLS_CERT_FILE"),
        ((other_chain, key, authority.pem), "is not that of the certificate of TLS_CERT_FILE"),
    ):
        with pytest.raises(InvalidRequest) as refused:
            parse_certificates(*parts)
        assert said in str(refused.value)
        assert "BEGIN" not in str(refused.value)


def test_keys_are_not_shown(tools_files):
    current = CertificateFiles(tools_files.chain, tools_files.key, tools_files.authorities).current()
    assert "PRIVATE" not in repr(current)


def test_every_service_is_called_by_the_orchestrator():
    assert all("orchestrator" in callers for callers in CALLERS.values())
    assert set(itertools.chain(*CALLERS.values())) == {"orchestrator", "constraint", "context", "rerank"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"TLS": "files"}, "PAGANTIC_INFERENCE_TLS_CERT_FILE: TLS=files needs this file"),
        ({"TLS": "on"}, "PAGANTIC_INFERENCE_TLS: input should be 'off', 'files' or 'mesh', not 'on'"),
        ({"AUTH": "tokens", "HOST": "0.0.0.0"}, "PAGANTIC_INFERENCE_TLS: others can call it"),  # noqa: S104
        ({"SPIFFE_PREFIX": "acme"}, "PAGANTIC_INFERENCE_SPIFFE_PREFIX:"),
    ],
)
def test_settings_that_would_not_protect_are_refused(given, said, monkeypatch, capsys, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("")
    monkeypatch.setenv("PAGANTIC_INFERENCE_VERIFYING_KEYS_FILE", str(keys))
    for name, value in given.items():
        monkeypatch.setenv(f"PAGANTIC_INFERENCE_{name}", value)
    with pytest.raises(SystemExit):
        load_settings(InferenceSettings)
    assert f"configuration error: {said}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("address", "environment", "reached", "is_encrypted"),
    [
        ("h:1", {}, "h:1", False),
        ("[::1]:1", {}, "[::1]:1", False),
        ("unix:/run/s", {}, "unix:/run/s", False),
        ("dns:///h:1", {}, "dns:///h:1", False),
        ("http://h:1", {"PAGANTIC_TLS": "files"}, "h:1", False),
        ("https://h", {}, "h:443", True),
        ("https://h/", {}, "h:443", True),
        ("https://h:8443", {}, "h:8443", True),
        ("https://[::1]", {}, "[::1]:443", True),
        ("https://[::1]:2", {}, "[::1]:2", True),
        ("h:1", {"PAGANTIC_TLS": "FILES"}, "h:1", True),
        ("h:1", {"PAGANTIC_TLS": "mesh"}, "h:1", False),
    ],
)
def test_an_address_says_how_it_is_reached(address, environment, reached, is_encrypted):
    target = find_target(address, environment)
    assert (target.address, target.credentials is not None) == (reached, is_encrypted)


@pytest.mark.parametrize(
    "address", ["https://", "https://h/path", "https://::1", "https://h:x", "https://h:", "https://a@h"]
)
def test_a_url_that_is_no_address_is_refused(address):
    with pytest.raises(InvalidRequest, match="is no address"):
        find_target(address, {})


@pytest.mark.parametrize("address", ["bad", "h:", ":1", "h:x", "[::1]"])
def test_an_address_without_a_port_is_refused(address):
    with pytest.raises(InvalidRequest, match=re.escape(f"the address {address!r} has no port: write HOST:PORT")):
        find_target(address, {})


@pytest.mark.parametrize("address", ["::1:50051", "fd00::5:50051", "::1"])
def test_an_ipv6_address_without_brackets_is_refused_with_the_form_to_write(address):
    with pytest.raises(InvalidRequest, match=r"write \[HOST\]:PORT for IPv6"):
        find_target(address, {})


def test_a_file_that_a_caller_lacks_is_named(tmp_path):
    with pytest.raises(InvalidRequest, match=r"PAGANTIC_TLS_CA_FILE .* cannot be read: No such file"):
        find_target("https://h", {"PAGANTIC_TLS_CA_FILE": str(tmp_path / "none")})
    with pytest.raises(InvalidRequest, match="set both PAGANTIC_TLS_CERT_FILE and PAGANTIC_TLS_KEY_FILE"):
        find_target("https://h", {"PAGANTIC_TLS_KEY_FILE": __file__})
