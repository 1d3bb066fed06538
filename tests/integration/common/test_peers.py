"""The breaker on calls to another service, over real sockets."""

import asyncio
import time
from contextlib import aclosing, asynccontextmanager

import grpc
import pytest
import structlog

from pagantic.inference.v1 import inference_service_pb2 as inference_pb
from pagantic.inference.v1 import inference_service_pb2_grpc as inference_rpc
from pagantic.tools.v1 import tools_service_pb2 as pb
from pagantic.tools.v1 import tools_service_pb2_grpc as rpc
from pagantic_common.domain.calls.breaker import FIRST_OPEN_S, THRESHOLD
from pagantic_common.domain.errors import DeadlineExceeded, Internal, Unavailable
from pagantic_common.rpc.channel import open_channel
from pagantic_common.rpc.peer import Peer
from pagantic_common.rpc.status import Unreachable
from pagantic_common.testing.clock import FakeClock
from pagantic_common.testing.server import serving
from tests.support.scripted_peers import ScriptedInference, ScriptedTools, served

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
REFUSED = "the tools service cannot be reached: the last calls failed"


class Gone(rpc.ToolServiceServicer):
    """Fails as a proxy does whose backend is gone: UNAVAILABLE without particulars, until it is `back`."""

    def __init__(self):
        self.calls = 0
        self.reached = asyncio.Event()
        self.release = asyncio.Event()
        self.is_back = False

    async def ExecuteTool(self, request, context):
        self.calls += 1
        self.reached.set()
        if not self.is_back:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "no backend")
        await self.release.wait()
        return pb.ExecuteToolResponse()


@asynccontextmanager
async def behind_a_proxy(service):
    server = grpc.aio.server()
    rpc.add_ToolServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with open_channel(f"127.0.0.1:{port}", max_message_bytes=MAX_MESSAGE_BYTES) as channel:
            yield channel
    finally:
        await server.stop(grace=0)


def peer_of(channel, name="tools", *, now_s=time.monotonic, patience_s=0.0):
    return Peer(name, channel, patience_s=patience_s, now_s=now_s)


def execute(peer, channel, timeout_s=20.0):
    return peer.call_unary(rpc.ToolServiceStub(channel).ExecuteTool, pb.ExecuteToolRequest(), timeout_s)


def list_tools(peer, channel, timeout_s=20.0):
    return peer.call_unary(rpc.ToolServiceStub(channel).ListTools, pb.ListToolsRequest(), timeout_s)


async def fail(call, *args, times=THRESHOLD, error=Unreachable):
    for _ in range(times):
        with pytest.raises(error):
            await call(*args)


async def until_answered(call, *args):
    async with asyncio.timeout(20):
        while True:
            try:
                return await call(*args)
            except Unreachable:
                await asyncio.sleep(0.02)


async def test_a_service_that_does_not_answer_is_called_no_more_until_a_probe_is_answered():
    service, clock = Gone(), FakeClock()
    async with behind_a_proxy(service) as channel:
        peer = peer_of(channel, now_s=clock.monotonic_s)
        await fail(execute, peer, channel)
        with pytest.raises(Unreachable, match=REFUSED) as caught:
            await execute(peer, channel)
        assert service.calls == THRESHOLD
        assert caught.value.code is None
        assert caught.value.retry_after_s == FIRST_OPEN_S

        clock.advance(FIRST_OPEN_S)
        with pytest.raises(Unreachable, match="no backend"):
            await execute(peer, channel)  # the probe
        with pytest.raises(Unreachable, match=REFUSED) as caught:
            await execute(peer, channel)
        assert service.calls == THRESHOLD + 1
        assert caught.value.retry_after_s == 2 * FIRST_OPEN_S

        service.is_back = True
        service.reached.clear()
        clock.advance(2 * FIRST_OPEN_S)
        probe = asyncio.create_task(execute(peer, channel))
        await service.reached.wait()
        with pytest.raises(Unreachable, match=REFUSED):
            await execute(peer, channel)
        service.release.set()
        await probe
        await execute(peer, channel)
        assert service.calls == THRESHOLD + 3


async def test_opening_and_closing_are_logged_once_each():
    service, clock = Gone(), FakeClock()
    service.release.set()
    with structlog.testing.capture_logs() as lines:
        async with behind_a_proxy(service) as channel:
            peer = peer_of(channel, now_s=clock.monotonic_s)
            await fail(execute, peer, channel, times=THRESHOLD + 3)
            clock.advance(FIRST_OPEN_S)
            await fail(execute, peer, channel, times=2)
            service.is_back = True
            clock.advance(2 * FIRST_OPEN_S)
            await execute(peer, channel)
            await execute(peer, channel)
    assert [(line["event"], line["peer"]) for line in lines if "circuit" in line["event"]] == [
        ("circuit opened", "tools"),
        ("circuit closed", "tools"),
    ]


async def answer(_call):
    pass


async def never(_call):
    await asyncio.Event().wait()


async def unavailable(_call):
    raise Unavailable("of its own accord")


async def broken(_call):
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("behave", "timeout_s", "error"),
    [(unavailable, 20.0, Unavailable), (broken, 20.0, Internal), (never, 0.05, DeadlineExceeded)],
)
async def test_what_a_service_answers_and_what_the_caller_ends_opens_nothing(behave, timeout_s, error):
    service = ScriptedTools(behave)
    async with serving([service.registration()]) as (channel, _):
        peer = peer_of(channel)
        await fail(execute, peer, channel, timeout_s, times=2 * THRESHOLD, error=error)
        service.behave = answer
        await execute(peer, channel)


async def test_a_deadline_says_nothing_of_the_service():
    service, clock = Gone(), FakeClock()
    async with behind_a_proxy(service) as channel:
        peer = peer_of(channel, now_s=clock.monotonic_s)
        await fail(execute, peer, channel, times=THRESHOLD - 1)
        service.is_back = True
        await fail(execute, peer, channel, 0.05, times=1, error=DeadlineExceeded)
        service.is_back = False
        await fail(execute, peer, channel, times=1)
        with pytest.raises(Unreachable, match=REFUSED):
            await execute(peer, channel)


async def one_message(_call):
    yield inference_pb.InferResponse()
    await asyncio.Event().wait()


def infer(peer, channel):
    return peer.call_stream(inference_rpc.InferenceServiceStub(channel).Infer, inference_pb.InferRequest(), 20.0)


async def test_the_first_message_of_a_stream_ends_a_row_of_failures():
    service = ScriptedInference(one_message)
    async with served() as (_, closed_port):
        pass
    async with (
        open_channel(f"127.0.0.1:{closed_port}", max_message_bytes=MAX_MESSAGE_BYTES) as nowhere,
        serving([service.registration()]) as (channel, _),
    ):
        peer = peer_of(nowhere, "inference")
        for _ in range(2):
            for _ in range(THRESHOLD - 1):
                with pytest.raises(Unreachable, match="nothing answers"):
                    await anext(infer(peer, nowhere))
            async with aclosing(infer(peer, channel)) as responses:
                await anext(responses)


async def test_streams_of_a_service_that_does_not_answer_are_refused():
    async with served() as (_, closed_port):
        pass
    async with open_channel(f"127.0.0.1:{closed_port}", max_message_bytes=MAX_MESSAGE_BYTES) as nowhere:
        peer = peer_of(nowhere, "inference", now_s=FakeClock().monotonic_s)
        for _ in range(THRESHOLD):
            with pytest.raises(Unreachable, match="nothing answers"):
                await anext(infer(peer, nowhere))
        with pytest.raises(Unreachable, match="the next is made in"):
            await anext(infer(peer, nowhere))


async def test_streams_that_are_cut_after_their_first_message_open_nothing():
    services = ScriptedInference(one_message), ScriptedInference(one_message)
    async with (
        served(services[0]) as (server, port),
        open_channel(f"127.0.0.1:{port}", max_message_bytes=MAX_MESSAGE_BYTES) as channel,
        serving([services[1].registration()]) as (other, _),
    ):
        peer = peer_of(channel, "inference")
        streams = [infer(peer, channel) for _ in range(2 * THRESHOLD)]
        for stream in streams:
            await anext(stream)
        await server.stop(grace=0)
        for stream in streams:
            with pytest.raises(Unreachable):
                await anext(stream)
        async with aclosing(infer(peer, other)) as responses:
            await anext(responses)


async def test_a_service_that_comes_back_on_its_port_is_used_again():
    again = ScriptedTools(answer)
    async with (
        served(ScriptedTools(answer)) as (server, port),
        open_channel(f"127.0.0.1:{port}", max_message_bytes=MAX_MESSAGE_BYTES) as channel,
    ):
        peer = peer_of(channel)
        await list_tools(peer, channel)
        await server.stop(grace=0)
        await fail(list_tools, peer, channel, times=THRESHOLD + 1)
        async with served(again, port=port):
            await until_answered(list_tools, peer, channel)
    assert again.calls == 1
