"""A PostgreSQL that is started late, stops and starts again, beside an orchestrator that lives on."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import grpc
import psycopg
import pytest
from structlog.testing import capture_logs

from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic.orchestrator.v1 import orchestrator_service_pb2_grpc as rpc
from pagantic_common.domain.errors import ErrorCode, NotFound, PreconditionFailed, Unavailable
from pagantic_common.rpc.call import call_unary
from pagantic_common.rpc.process import starting
from pagantic_common.rpc.process.program import watch_readiness
from pagantic_common.rpc.process.server import start_server
from pagantic_common.telemetry.names import LIVENESS, READINESS
from services.orchestrator.__main__ import open_app
from services.orchestrator.adapters.journal.sql_journal import SqlJournal
from services.orchestrator.adapters.journal.upkeep import owner_lock
from services.orchestrator.settings import OrchestratorSettings
from tests.integration.orchestrator.test_readiness import Constraint, health_of, silence, until
from tests.support.journal_records import admit, happened, record, sequences
from tests.support.keys import execution
from tests.support.needs import POSTGRESQL, skip_without
from tests.support.orchestrator_app import execute, system_request
from tests.support.ports import free_ports
from tests.support.postgres import find_programs, postgres_server
from tests.support.scripted_peers import ScriptedInference, served


@pytest.fixture
def server():
    programs = find_programs()
    if programs is None:
        skip_without(POSTGRESQL)
    with postgres_server(programs) as found:
        yield found


def settings_of(url, ports, **more):
    own, inference, constraint, other = ports
    peers = {"inference_address": inference, "constraint_address": constraint}
    peers |= dict.fromkeys(("context_address", "rerank_address", "tools_address"), other)
    addresses = {name: f"127.0.0.1:{port}" for name, port in peers.items()}
    return OrchestratorSettings(port=own, journal_url=url, instance_id="it", **addresses, **more)


@asynccontextmanager
async def beside_peers(ports):
    _, inference, constraint, _ = ports
    async with (
        served(Constraint(), port=constraint),
        served(ScriptedInference(silence), port=inference),
        grpc.aio.insecure_channel(f"127.0.0.1:{ports[0]}") as channel,
    ):
        yield channel


async def listed(channel):
    stub = rpc.OrchestratorServiceStub(channel)
    return await call_unary("orchestrator", stub.ListExecutions, pb.ListExecutionsRequest())


async def test_an_orchestrator_waits_for_its_database_and_tells_when_it_is_lost(server):
    ports = free_ports(4)
    async with beside_peers(ports) as channel, AsyncExitStack() as stack:
        settings = settings_of(server.url, ports)
        opening = asyncio.create_task(stack.enter_async_context(open_app(settings)))
        await channel.channel_ready()
        assert await health_of(channel, READINESS) == await health_of(channel, "") == "NOT_SERVING"
        assert await health_of(channel, LIVENESS) == "SERVING"
        with pytest.raises(Unavailable, match="the service is starting: its database does not answer yet") as refused:
            await listed(channel)
        assert refused.value.retry_after_s
        await asyncio.to_thread(server.start)
        registrations = await asyncio.wait_for(opening, 30)
        grpc_server, health, _ = await start_server(settings, registrations)
        watching = asyncio.create_task(watch_readiness(registrations, health))
        await until(channel, READINESS, "SERVING")
        for mode in ("fast", "immediate"):
            await asyncio.to_thread(server.stop, mode)
            await until(channel, READINESS, "NOT_SERVING")
            assert await health_of(channel, LIVENESS) == "SERVING"
            with pytest.raises(Unavailable, match="database does not answer") as failed:
                await execute(rpc.OrchestratorServiceStub(channel), system_request(request_id="r"))
            assert failed.value.code is ErrorCode.ORCHESTRATION_DEPENDENCY_UNAVAILABLE
            assert failed.value.retry_after_s
            await asyncio.to_thread(server.start)
            await until(channel, READINESS, "SERVING")
            await listed(channel)
        watching.cancel()
        await grpc_server.stop(grace=0)


async def test_a_start_waits_no_longer_than_it_may_and_ends_when_it_is_told_to(server):
    ports = free_ports(4)
    with pytest.raises(starting.WaitedTooLong, match="JOURNAL_WAIT_S"):
        async with open_app(settings_of(server.url, ports, journal_wait_s=0.1)):
            pass
    stop = asyncio.Event()
    stop.set()
    before = starting.stopping.set(stop)
    with pytest.raises(starting.StoppedAtStart):
        async with open_app(settings_of(server.url, ports)):
            pass
    starting.stopping.reset(before)


async def test_a_database_that_refuses_the_user_or_is_not_there_is_a_wrong_setting(server):
    await asyncio.to_thread(server.start)
    for wrong in (server.url.replace("pagantic@", "nobody@"), server.url.replace("/postgres", "/other")):
        with pytest.raises(PreconditionFailed, match="does not exist"):
            async with open_app(settings_of(wrong, free_ports(4))):
                pass


async def test_an_owner_holds_its_lock_again_after_a_restart_of_the_server(server, monkeypatch):
    monkeypatch.setattr(owner_lock, "OWNER_TIMEOUT_S", 0.5)
    await asyncio.to_thread(server.start)
    first, second = SqlJournal(server.url, owner="a"), SqlJournal(server.url, owner="a")
    await first.open()
    await asyncio.to_thread(server.stop, "fast")
    with pytest.raises(Unavailable):
        await first.beat()
    await asyncio.to_thread(server.start)
    await admit(first)  # the first write after the restart takes the lock, before any beat
    locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
    with psycopg.connect(server.url) as connection:
        assert connection.execute(locks).fetchone() == (1,)
    with pytest.raises(PreconditionFailed, match="another orchestrator runs as 'a'"):
        await second.open()
    await first.close()


async def lose_name(server, owner):
    """Give an owner that runs "r", and the process that took its name while the server restarted, and that runs "r"."""
    first, second = SqlJournal(server.url, owner=owner), SqlJournal(server.url, owner=owner)
    await first.open()
    await admit(first)
    await asyncio.to_thread(server.stop, "fast")
    await asyncio.to_thread(server.start)
    await second.open()
    assert await second.claim(execution("r"))
    return first, second


async def test_an_owner_whose_name_was_taken_during_a_restart_writes_nothing_and_ends(server, monkeypatch):
    monkeypatch.setattr(owner_lock, "OWNER_TIMEOUT_S", 0.5)
    await asyncio.to_thread(server.start)
    first, second = await lose_name(server, "a")
    names = ["x", "y", "z"]
    for name in names:
        with capture_logs(), pytest.raises(Unavailable):
            await admit(first, name)
    with pytest.raises(Unavailable):
        await first.write(happened(record(), 1))
    await asyncio.sleep(0.6)
    with pytest.raises(PreconditionFailed, match="another orchestrator runs as 'a'"):
        await first.beat()
    for name in names:
        with pytest.raises(NotFound):
            await second.get(execution(name))
    await second.write(happened(record(), 1))
    assert await sequences(second, "r") == [1]
    await first.close()
    assert not (await second.get(execution("r"))).is_interrupted
    await second.close()


async def test_a_write_that_the_lock_refuses_for_good_is_tried_once_and_the_owner_can_be_closed(server, monkeypatch):
    monkeypatch.setattr(owner_lock, "OWNER_TIMEOUT_S", 0.0)
    await asyncio.to_thread(server.start)
    first, second = await lose_name(server, "a")
    with pytest.raises(Unavailable):  # the first refusal is not for good
        await admit(first, "x")
    asked, hold = [], first._lock.hold
    monkeypatch.setattr(first._lock, "hold", lambda: (asked.append(1), hold()))
    for number in (1, 2):
        with pytest.raises(PreconditionFailed, match="another orchestrator runs as 'a'"):
            await admit(first, "x")
        assert len(asked) == number
    await first.close()
    with pytest.raises(NotFound):
        await second.get(execution("x"))
    assert not (await second.get(execution("r"))).is_interrupted
    await second.close()


async def test_a_start_that_fails_after_it_took_the_lock_gives_it_back(server, monkeypatch):
    monkeypatch.setattr(owner_lock, "OWNER_TIMEOUT_S", 0.5)
    await asyncio.to_thread(server.start)
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("CREATE ROLE few LOGIN CONNECTION LIMIT 1")
        connection.execute("GRANT ALL ON SCHEMA public TO few")
        journal = SqlJournal(server.url.replace("pagantic@", "few@"), owner="a")
        with pytest.raises(Unavailable, match="too many connections"):
            await journal.open()
        connection.execute("ALTER ROLE few CONNECTION LIMIT -1")
    await journal.open()
    await admit(journal)
    await journal.close()


async def test_an_owner_does_not_take_its_lock_on_a_standby(server, monkeypatch):
    monkeypatch.setattr(owner_lock, "OWNER_TIMEOUT_S", 0.5)
    await asyncio.to_thread(server.start)
    with server.standby() as standby:
        hosts = "&".join(f"host={one.url.split('@')[1].split('/')[0]}" for one in (server, standby))
        url = f"postgresql://pagantic@/postgres?{hosts}"  # the standby while the primary is not there
        first, second = SqlJournal(url, owner="a"), SqlJournal(server.url, owner="a")
        await first.open()
        await asyncio.to_thread(server.stop, "fast")
        for _ in range(2):
            with pytest.raises(Unavailable, match="does not answer"):
                await first.beat()
        with pytest.raises(Unavailable, match="does not answer"):
            await SqlJournal(url, owner="b").open()
        await asyncio.to_thread(server.start)
        await first.beat()
        locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
        for one, count in ((server, 1), (standby, 0)):
            with psycopg.connect(one.url) as connection:
                assert connection.execute(locks).fetchone() == (count,)
        with pytest.raises(PreconditionFailed, match="another orchestrator runs as 'a'"):
            await second.open()
        await first.close()
