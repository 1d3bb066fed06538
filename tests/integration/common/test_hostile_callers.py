"""What a server bears: callers that hold streams, send garbage, do not read, or vanish."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time

import grpc
import pytest
from grpc_channelz.v1 import channelz_pb2, channelz_pb2_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from pagantic.tools.v1 import tools_service_pb2 as pb
from pagantic.tools.v1 import tools_service_pb2_grpc as rpc
from pagantic_common.domain.errors import InvalidRequest, NotFound, Overloaded, Unavailable
from pagantic_common.rpc.access.registration import Registration
from pagantic_common.rpc.call import call_unary
from pagantic_common.rpc.call_limits import MAX_SIDE_STREAMS_PER_CONNECTION
from pagantic_common.rpc.channel import open_channel
from pagantic_common.rpc.process import program, server
from pagantic_common.rpc.process.admin import start_admin_server
from pagantic_common.rpc.process.program import EXIT_BROKEN, run_service
from pagantic_common.rpc.process.server import start_server
from pagantic_common.settings import Auth, ServiceSettings
from tests.support.doors import open_to_all

NAME = pb.DESCRIPTOR.services_by_name["ToolService"].full_name
LIST_TOOLS = f"/{NAME}/ListTools"


class Scripted(rpc.ToolServiceServicer):
    """Does what `behave` does with each ListTools call."""

    def __init__(self, behave):
        self.behave = behave
        self.calls = 0

    async def ListTools(self, request, context):
        self.calls += 1
        await self.behave()
        return pb.ListToolsResponse()

    def registration(self):
        return Registration(NAME, lambda server: rpc.add_ToolServiceServicer_to_server(self, server), open_to_all(NAME))


async def answer():
    pass


@contextlib.asynccontextmanager
async def serving(service, *, max_streams=None, **settings):
    settings = ServiceSettings(port=0, **settings)
    server, health, port = await start_server(settings, [service.registration()], max_streams=max_streams)
    try:
        yield f"127.0.0.1:{port}", health
    finally:
        await server.stop(grace=0)


async def list_tools(address, timeout_s=5.0):
    async with open_channel(address, max_message_bytes=1 << 20) as channel:
        return await call_unary("tools", rpc.ToolServiceStub(channel).ListTools, pb.ListToolsRequest(), timeout_s)


async def watch(channel, name=""):
    """Begin a health watch and return it with its first answer, or the status that refused it."""
    call = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=name))
    try:
        return call, await call.read()
    except grpc.aio.AioRpcError as error:
        return call, error.code()


async def test_idle_health_watches_take_no_place_from_calls():
    async with serving(Scripted(answer), max_concurrent_rpcs=8) as (address, _), contextlib.AsyncExitStack() as stack:
        for number in range(20):  # as many connections, or gRPC would share one
            options = [("grpc.use_local_subchannel_pool", 1), ("test", number)]
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(address, options=options))
            await watch(channel)
        await list_tools(address)


async def test_one_connection_has_few_health_watches():
    async with serving(Scripted(answer)) as (address, _), grpc.aio.insecure_channel(address) as channel:
        answers = [(await watch(channel))[1] for _ in range(MAX_SIDE_STREAMS_PER_CONNECTION + 2)]
        refused = [status for status in answers if status is grpc.StatusCode.RESOURCE_EXHAUSTED]
        assert len(refused) == 2
        check = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5)
        assert (await check).status == health_pb2.HealthCheckResponse.SERVING


async def test_a_watch_of_a_name_that_nothing_has_holds_no_memory():
    """A watch lasts for ever, and its request with it: 256 of a host with names of 4 MiB would be a gibibyte."""
    async with serving(Scripted(answer)) as (address, _), grpc.aio.insecure_channel(address) as channel:
        _, told = await watch(channel, "pagantic.unknown.v1.Service")
        assert told.status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        _, told = await watch(channel, "x" * 1_000_000)
        assert told is grpc.StatusCode.NOT_FOUND


async def test_a_watch_that_ended_makes_room_for_another():
    async with serving(Scripted(answer)) as (address, _), grpc.aio.insecure_channel(address) as channel:
        for _ in range(3 * MAX_SIDE_STREAMS_PER_CONNECTION):
            call, told = await watch(channel)
            assert told is not grpc.StatusCode.RESOURCE_EXHAUSTED
            call.cancel()
            await asyncio.sleep(0.02)


async def test_one_host_leaves_room_for_others():
    waiting = asyncio.Event()
    service = Scripted(waiting.wait)
    async with serving(service, max_concurrent_rpcs=8, max_concurrent_rpcs_per_host=2) as (address, _):
        holding = [asyncio.create_task(list_tools(address)) for _ in range(2)]
        async with asyncio.timeout(60):
            while service.calls < 2:  # noqa: ASYNC110 - as a caller looks
                await asyncio.sleep(0.01)
        with pytest.raises(Overloaded, match="the caller's host already has 2 running calls"):
            await list_tools(address, 0.9)
        waiting.set()
        await asyncio.gather(*holding)
        await list_tools(address)


async def test_calls_of_one_channel_leave_another_channel_of_the_same_process_its_streams():
    """With several services in one process, a call that runs must not wait for the stream that it holds itself."""
    waiting = asyncio.Event()
    service = Scripted(waiting.wait)
    async with serving(service, max_streams=2) as (address, _):  # one is the health watch's
        first = asyncio.create_task(list_tools(address))
        second = asyncio.create_task(list_tools(address))
        try:
            async with asyncio.timeout(60):
                while service.calls < 2:  # noqa: ASYNC110 - as a caller looks
                    await asyncio.sleep(0.01)
        finally:
            waiting.set()
            await asyncio.gather(first, second)


def test_a_port_that_is_taken_is_named_by_its_setting(capsys, monkeypatch):
    # It would write the records of all later tests to what stands for stderr in this one.
    monkeypatch.setattr(program, "set_up_logging", lambda *_args, **_options: None)

    @contextlib.asynccontextmanager
    async def open_app():
        yield [Scripted(answer).registration()]

    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SystemExit):
        run_service("tools", ServiceSettings(port=0, admin_port=taken.getsockname()[1]), open_app)
    assert "set PAGANTIC_TOOLS_ADMIN_PORT, or stop the process that listens there" in capsys.readouterr().err


def test_no_call_is_cut_for_the_age_of_its_connection():
    """An execution lasts as long as MAX_EXECUTION_S says, up to a year; gRPC takes 24 days at most.

    A client of grpc-js with keepalive loses its running calls when a server begins to close their connection.
    """
    names = {name for name, _ in server._CONNECTION_OPTIONS}
    assert not {"grpc.max_connection_age_ms", "grpc.max_connection_age_grace_ms"} & names


def _frame(kind, flags, stream, payload):
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


GOAWAY, PING, ACK = 7, 6, 1


async def pinged(address, interval_s, count):
    """Ping a server from a peer that speaks HTTP/2, and return whether it answered every ping or began to close."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, 0, 0, b""))

    async def ping():
        for number in range(count):
            writer.write(_frame(PING, 0, 0, number.to_bytes(8, "big")))
            await asyncio.sleep(interval_s)

    pinging = asyncio.create_task(ping())
    answers = 0
    try:
        while answers < count:
            head = await reader.readexactly(9)
            await reader.readexactly(int.from_bytes(head[:3], "big"))
            if head[3] == GOAWAY:
                return False
            answers += head[3] == PING and head[4] == ACK
        return True
    finally:
        pinging.cancel()
        writer.close()


async def test_a_caller_that_pings_each_second_keeps_its_connection_and_a_flood_of_pings_does_not():
    async with serving(Scripted(answer)) as (address, _):
        assert await pinged(address, 0.9, 6)
        assert not await pinged(address, 0.001, 200)


async def test_a_watcher_that_does_not_read_keeps_no_change_from_others():
    # A peer that speaks HTTP/2 and grants a window of 0 for what is sent to it.
    async with serving(Scripted(answer)) as (address, health), grpc.aio.insecure_channel(address) as channel:
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port))) as hostile:
            hostile.sendall(_silent_watch())
            await asyncio.sleep(0.2)
            call, told = await asyncio.wait_for(watch(channel), 60)
            assert told.status == health_pb2.HealthCheckResponse.SERVING
            health.stop()
            changed = await asyncio.wait_for(call.read(), 60)
            assert changed.status == health_pb2.HealthCheckResponse.NOT_SERVING


def _silent_watch():
    def frame(kind, flags, stream, payload):
        return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload

    def literal(name, value):
        return bytes([0, len(name)]) + name + bytes([len(value)]) + value

    settings = frame(4, 0, 0, (4).to_bytes(2, "big") + (0).to_bytes(4, "big"))  # INITIAL_WINDOW_SIZE 0
    fields = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/grpc.health.v1.Health/Watch"),
        (b":authority", b"x"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    ]
    headers = frame(1, 4, 1, b"".join(literal(*field) for field in fields))
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings + headers + frame(0, 1, 1, bytes(5))


@pytest.mark.parametrize("payload", [b"\x0a", b"\x0a\x02\xff\xfe", b"\xff" * 40, b"\x0b"])
async def test_bytes_that_are_no_message_are_an_invalid_request(payload, caplog):
    async with serving(Scripted(answer)) as (address, _), open_channel(address, max_message_bytes=1 << 20) as channel:
        method = channel.unary_unary(f"/{NAME}/ExecuteTool", request_serializer=bytes, response_deserializer=bytes)
        with pytest.raises(InvalidRequest, match="the message cannot be read"):
            await call_unary("tools", method, payload, 5)
    assert "Traceback" not in caplog.text


async def test_a_cancellation_that_leaks_out_of_the_service_is_answered():
    async def leak():
        task = asyncio.create_task(asyncio.sleep(9))
        task.cancel()
        await task

    async with serving(Scripted(leak)) as (address, _):
        started_s = time.monotonic()
        with pytest.raises(Unavailable, match="cancelled its own work"):
            await list_tools(address, 30)
        assert time.monotonic() - started_s < 20  # an answer, not the deadline


@pytest.mark.parametrize("name", ["\U0001f600" * 2000, "ü" * 9000, "\x00\x01" * 5000, "%" * 9000, "x" * 100_000])
async def test_an_error_of_any_text_keeps_its_status_and_is_tried_once(name):
    async def refuse():
        raise NotFound(f"no tool is named {name!r}", details={"name": name})

    service = Scripted(refuse)
    async with serving(service) as (address, _):
        with pytest.raises(NotFound, match="no tool is named"):
            await list_tools(address)
    assert service.calls == 1


async def test_reflection_is_for_this_machine_unless_told():
    async def reflects(**settings):
        async with serving(Scripted(answer), **settings) as (address, _), grpc.aio.insecure_channel(address) as channel:
            call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()
            reply = None
            with contextlib.suppress(grpc.aio.AioRpcError):  # UNIMPLEMENTED
                await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
                reply = await call.read()
            call.cancel()
            return isinstance(reply, reflection_pb2.ServerReflectionResponse)

    assert await reflects()
    assert not await reflects(host="0.0.0.0", auth=Auth.NONE)  # noqa: S104 - what a container is told
    assert await reflects(host="0.0.0.0", auth=Auth.NONE, reflection=True)  # noqa: S104


async def test_probes_and_sockets_are_shown_at_the_admin_port_alone(unused_tcp_port):
    async with serving(Scripted(answer)) as (address, health):
        admin = await start_admin_server(ServiceSettings(port=0, admin_port=unused_tcp_port), health)
        async with (
            grpc.aio.insecure_channel(f"127.0.0.1:{unused_tcp_port}") as inside,
            grpc.aio.insecure_channel(address) as outside,
        ):
            check = health_pb2_grpc.HealthStub(inside).Check(health_pb2.HealthCheckRequest(service="liveness"))
            assert (await check).status == health_pb2.HealthCheckResponse.SERVING
            await channelz_pb2_grpc.ChannelzStub(inside).GetServers(channelz_pb2.GetServersRequest())
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await channelz_pb2_grpc.ChannelzStub(outside).GetServers(channelz_pb2.GetServersRequest())
            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
        await admin.stop(grace=0)


BROKEN_SERVICE = """
import asyncio, contextlib, threading, time
from pagantic_common.rpc.access.registration import Registration
from pagantic_common.rpc.process.program import run_service
from pagantic_common.settings import Auth, ServiceSettings

async def break_down():
    await asyncio.sleep(0.2)
    {how}

@contextlib.asynccontextmanager
async def open_app():
    threading.Thread(target=time.sleep, args=(3600,)).start()  # as a decode that hangs
    yield [Registration("pagantic.test.v1.Test", lambda server: None, dict(), wait_until_broken=break_down)]

run_service("tools", ServiceSettings(port=0), open_app)
"""


@pytest.mark.parametrize("how", ["return 'the engine hangs'", "raise OSError('the watch broke')"])
def test_a_broken_service_ends_its_process_with_a_status_of_its_own(how):
    program = BROKEN_SERVICE.format(how=how)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == EXIT_BROKEN
    assert "broken: the process ends" in done.stdout + done.stderr


def test_what_a_peer_says_as_it_leaves_is_not_in_the_log():
    program = BROKEN_SERVICE.format(how="await asyncio.sleep(3600)")
    with subprocess.Popen(
        [sys.executable, "-c", f"import services\n{program}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            line = next(line for line in process.stdout if "listening" in line)
            port = int(line.partition("127.0.0.1:")[2].partition('"')[0])
            forged = b'x\n{"event": "forged"}\n'
            goaway = (8 + len(forged)).to_bytes(3, "big") + bytes([7, 0]) + bytes(4) + bytes(8) + forged
            with socket.create_connection(("127.0.0.1", port)) as peer:
                peer.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + bytes([4, 0]) + bytes(4) + goaway)
                time.sleep(0.5)
        finally:
            os.kill(process.pid, signal.SIGKILL)
        assert "forged" not in process.stdout.read()
