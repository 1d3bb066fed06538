"""Readiness tells whether a request would be answered, liveness only that the process works."""

import asyncio
import shutil
import sqlite3
from contextlib import asynccontextmanager
from types import SimpleNamespace

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from structlog.testing import capture_logs

from pagantic.constraint.v1 import constraint_service_pb2, constraint_service_pb2_grpc
from pagantic_common.client import AsyncClient
from pagantic_common.domain.errors import Unavailable
from pagantic_common.domain.messages import Message, Role
from pagantic_common.rpc.access.registration import Registration
from pagantic_common.rpc.process.program import watch_readiness
from pagantic_common.rpc.process.server import start_server
from pagantic_common.telemetry.names import LIVENESS, READINESS
from services.orchestrator.__main__ import _journal_trouble, open_app
from services.orchestrator.adapters.journal.sql_journal import SqlJournal
from services.orchestrator.ports.journal import MAX_STATE_BYTES
from services.orchestrator.settings import OrchestratorSettings
from tests.support.doors import open_to_all
from tests.support.journal_records import admit, ended, record
from tests.support.keys import session
from tests.support.ports import free_ports
from tests.support.scripted_peers import ScriptedInference, served

WITHIN_S = 20.0


class Constraint(constraint_service_pb2_grpc.ConstraintServiceServicer):
    def registration(self):
        name = constraint_service_pb2.DESCRIPTOR.services_by_name["ConstraintService"].full_name
        return Registration(
            name,
            lambda server: constraint_service_pb2_grpc.add_ConstraintServiceServicer_to_server(self, server),
            open_to_all(name),
        )


@asynccontextmanager
async def orchestrator_beside(ports, path, **more):
    async with (
        listening_beside(ports, path, **more) as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        yield channel


@asynccontextmanager
async def listening_beside(ports, path, **more):
    inference, constraint, other = (f"127.0.0.1:{port}" for port in ports)
    settings = OrchestratorSettings(
        port=0,
        journal_url=f"sqlite:///{path / 'journal.sqlite3'}",
        inference_address=inference,
        constraint_address=constraint,
        context_address=other,
        rerank_address=other,
        tools_address=other,
        instance_id="it",
        **more,
    )
    async with open_app(settings) as registrations:
        server, health, port = await start_server(settings, registrations)
        watching = asyncio.create_task(watch_readiness(registrations, health))
        yield port
        watching.cancel()
        await server.stop(grace=0)


async def health_of(channel, name):
    reply = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=name), timeout=5)
    return health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status)


async def until(channel, name, wanted):
    async with asyncio.timeout(WITHIN_S):
        while await health_of(channel, name) != wanted:  # noqa: ASYNC110 - as a probe looks
            await asyncio.sleep(0.05)


async def silence(_call):
    await asyncio.Event().wait()
    yield


@pytest.fixture
def ports():
    return free_ports(3)


async def test_an_orchestrator_is_ready_while_what_every_request_needs_serves_and_lives_without(ports, tmp_path):
    inference, constraint, _ = ports
    async with orchestrator_beside(ports, tmp_path) as channel:
        assert await health_of(channel, READINESS) == "NOT_SERVING"
        async with served(Constraint(), port=constraint):
            async with served(ScriptedInference(silence), port=inference):
                await until(channel, READINESS, "SERVING")  # without context, rerank and tools
            await until(channel, READINESS, "NOT_SERVING")
            assert await health_of(channel, LIVENESS) == await health_of(channel, "") == "SERVING"
            async with served(ScriptedInference(silence), port=inference):
                await until(channel, READINESS, "SERVING")


async def test_an_orchestrator_whose_journal_takes_no_writes_is_not_ready(ports, tmp_path):
    inference, constraint, _ = ports
    async with (
        served(Constraint(), port=constraint),
        served(ScriptedInference(silence), port=inference),
        orchestrator_beside(ports, tmp_path) as channel,
    ):
        await until(channel, READINESS, "SERVING")
        lock = sqlite3.connect(tmp_path / "journal.sqlite3", timeout=WITHIN_S, isolation_level=None)
        lock.execute("BEGIN EXCLUSIVE")
        await until(channel, READINESS, "NOT_SERVING")
        assert await health_of(channel, LIVENESS) == "SERVING"
        lock.execute("ROLLBACK")
        lock.close()
        await until(channel, READINESS, "SERVING")


async def test_an_orchestrator_whose_journal_has_no_room_left_is_not_ready(ports, tmp_path):
    inference, constraint, _ = ports
    async with served(Constraint(), port=constraint), served(ScriptedInference(silence), port=inference):
        async with orchestrator_beside(ports, tmp_path) as channel:
            await until(channel, READINESS, "SERVING")
        with capture_logs() as logs:
            async with orchestrator_beside(ports, tmp_path, journal_min_free_bytes=2**62) as channel:
                await asyncio.sleep(3)  # as long as it takes to be ready otherwise
                assert await health_of(channel, READINESS) == "NOT_SERVING"
                assert await health_of(channel, LIVENESS) == "SERVING"
        assert any(f"at least {2**62} are needed" in entry.get("reason", "") for entry in logs)


async def test_a_journal_whose_writes_fail_is_trouble_until_one_succeeds(tmp_path, monkeypatch):
    journal = SqlJournal(f"sqlite:///{tmp_path / 'journal.sqlite3'}")
    await journal.open()
    try:
        presence = SimpleNamespace(is_beating=True)
        assert _journal_trouble(presence, journal, 0) == ""
        with monkeypatch.context() as patched:
            patched.setattr(journal._writes, "take_turn", full)
            with pytest.raises(Unavailable, match="disk is full"):
                await journal.take_turn(session("s"), "r")
            assert "disk is full" in _journal_trouble(presence, journal, 0)
        await journal.beat()
        assert _journal_trouble(presence, journal, 0) == ""
        assert _journal_trouble(SimpleNamespace(is_beating=False), journal, 0)
        assert journal.space.used_bytes() > 10_000
    finally:
        await journal.close()


def full(*_given):
    raise sqlite3.OperationalError("database or disk is full")


async def test_a_volume_that_cannot_be_asked_is_trouble_and_no_end_of_the_process(tmp_path):
    journal = SqlJournal(f"sqlite:///{tmp_path / 'folder' / 'journal.sqlite3'}")
    await journal.open()
    try:
        shutil.rmtree(tmp_path / "folder")
        trouble = _journal_trouble(SimpleNamespace(is_beating=True), journal, 0)
        assert trouble == "the journal's volume cannot be asked for its room: No such file or directory"
    finally:
        await journal.close()


async def test_a_client_reads_a_long_conversation_whatever_the_largest_message_of_the_orchestrator_is(ports, tmp_path):
    said = tuple(Message(Role.USER, f"{number}" * 500_000) for number in range(10))
    journal = SqlJournal(f"sqlite:///{tmp_path / 'journal.sqlite3'}")
    await journal.open()
    await admit(journal, session_id="s")
    await journal.write(ended(record(session_id="s"), 1, turn=said))
    await journal.close()
    async with (
        listening_beside(ports, tmp_path, max_message_bytes=64 * 1024 * 1024) as port,
        AsyncClient(f"127.0.0.1:{port}") as client,
    ):
        session = await client.get_session("s")
    assert [message.content[0] for message in session.messages] == [f"{number}" for number in range(10)]


async def test_a_session_keeps_what_it_may_also_where_requests_must_be_small(ports, tmp_path):
    async with (
        listening_beside(ports, tmp_path, max_request_bytes=2000) as port,
        AsyncClient(f"127.0.0.1:{port}") as client,
    ):
        values = {f"{number}".zfill(128): "1" * (MAX_STATE_BYTES // 100 - 2) for number in range(100)}
        session = await client.update_session("s", values)
        assert len(session.state_json) == 100
