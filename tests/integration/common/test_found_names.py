"""A channel is opened again when its name has an address again, over real sockets."""

import asyncio
import contextlib
from dataclasses import replace

import pytest

from pagantic.tools.v1 import tools_service_pb2 as pb
from pagantic.tools.v1 import tools_service_pb2_grpc as rpc
from pagantic_common.rpc.access.tls import replaced_channel
from pagantic_common.rpc.access.tls.calling import find_target
from pagantic_common.rpc.access.tls.renewed_channel import open_service_channel
from pagantic_common.rpc.access.tls.replaced_channel import ReplacedChannel, name_in
from pagantic_common.rpc.channel import open_channel
from pagantic_common.rpc.peer import Peer
from pagantic_common.settings import ServiceSettings
from tests.support.ports import free_ports
from tests.support.scripted_peers import ScriptedTools, served

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
KNOWN, UNKNOWN = "localhost", "x" * 64  # no label may be so long


async def answer(_call):
    pass


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch):
    monkeypatch.setattr(replaced_channel, "RECONNECTS", replace(replaced_channel.RECONNECTS, first_s=0.1))
    monkeypatch.setattr(replaced_channel, "LOOK_S", 0.05)


def opened_in_turn(*ports):
    """Return what opens channels to these ports in turn, then always to the last, and the ports that it opened."""
    opened = []

    def open_one():
        port = ports[min(len(opened), len(ports) - 1)]
        opened.append(port)
        return open_channel(f"127.0.0.1:{port}", max_message_bytes=MAX_MESSAGE_BYTES)

    return open_one, opened


def list_tools(channel):
    peer = Peer("tools", channel, patience_s=10.0)
    return peer.call_unary(rpc.ToolServiceStub(channel).ListTools, pb.ListToolsRequest(), 10.0)


async def test_calls_that_wait_are_made_once_their_channel_is_opened_again():
    closed, wanted = free_ports(2)
    open_one, opened = opened_in_turn(closed, wanted)
    async with ReplacedChannel(open_one, KNOWN) as channel, served(ScriptedTools(answer), port=wanted):
        replies = await asyncio.gather(*(list_tools(channel) for _ in range(3)))
    assert replies == [pb.ListToolsResponse()] * 3
    assert opened[:2] == [closed, wanted]


async def test_a_channel_whose_name_has_no_address_is_not_opened_again():
    open_one, opened = opened_in_turn(*free_ports(1))
    async with ReplacedChannel(open_one, UNKNOWN) as channel:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                await channel.channel_ready()
    assert len(opened) == 1


async def test_a_channel_that_stays_lost_is_opened_again_ever_more_rarely():
    open_one, opened = opened_in_turn(*free_ports(1))
    async with ReplacedChannel(open_one, KNOWN) as channel:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await channel.channel_ready()
    assert 2 <= len(opened) <= 4


@pytest.fixture
def _ages_quickly(monkeypatch):
    monkeypatch.setattr(replaced_channel, "MAX_AGE_S", 0.1)
    monkeypatch.setattr(replaced_channel, "CONNECT_S", 0.1)


@pytest.mark.usefixtures("_ages_quickly")
async def test_an_old_channel_is_replaced_and_its_running_call_ends_on_it():
    released = asyncio.Event()

    async def first_waits(number):
        if number == 1:
            await released.wait()

    before, after = ScriptedTools(first_waits), ScriptedTools(answer)
    async with served(before) as (_, old_port), served(after) as (_, new_port):
        open_one, opened = opened_in_turn(old_port, new_port)
        async with ReplacedChannel(open_one, KNOWN) as channel:
            running = asyncio.ensure_future(list_tools(channel))
            await before.reached.wait()
            async with asyncio.timeout(10):
                while not after.calls:
                    await list_tools(channel)
            assert not running.done()
            released.set()
            assert await running == pb.ListToolsResponse()
    assert opened[:2] == [old_port, new_port]


@pytest.mark.usefixtures("_ages_quickly")
async def test_an_old_channel_stays_in_use_while_no_other_connects():
    tools = ScriptedTools(answer)
    async with served(tools) as (_, port):
        open_one, opened = opened_in_turn(port, *free_ports(1))
        async with ReplacedChannel(open_one, KNOWN) as channel:
            while len(opened) < 2:
                await list_tools(channel)
            for _ in range(30):
                await asyncio.sleep(0.01)
                assert await list_tools(channel) == pb.ListToolsResponse()
    assert len(opened) == 2


@pytest.mark.usefixtures("_ages_quickly")
async def test_a_channel_to_an_address_does_not_age():
    async with served(ScriptedTools(answer)) as (_, port):
        open_one, opened = opened_in_turn(port)
        async with ReplacedChannel(open_one) as channel:
            for _ in range(20):
                await asyncio.sleep(0.01)
                await list_tools(channel)
    assert len(opened) == 1


@pytest.mark.parametrize(
    ("address", "is_name"),
    [
        ("localhost:7", True),
        ("dns:///localhost:7", True),
        ("https://gateway.example", True),
        ("127.0.0.1:7", False),
        ("[::1]:7", False),
        ("https://127.0.0.1:7", False),
        ("unix:/run/pagantic", False),
    ],
)
async def test_the_channels_of_clients_follow_the_addresses_of_a_name(address, is_name):
    async with find_target(address, {}).open(MAX_MESSAGE_BYTES) as channel:
        assert isinstance(channel, ReplacedChannel) is is_name


async def test_channels_to_names_are_opened_again_and_others_stay_as_they_are():
    async with served(ScriptedTools(answer)) as (_, port):
        for address, is_name in ((f"dns:///localhost:{port}", True), (f"ipv4:127.0.0.1:{port}", False)):
            async with open_service_channel(address, ServiceSettings(port=0)) as channel:
                assert isinstance(channel, ReplacedChannel) is is_name
                assert await list_tools(channel) == pb.ListToolsResponse()


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("dns:///inference:50052", "inference"),
        ("dns://10.0.0.1/inference:50052", "inference"),
        ("dns:inference:50052", "inference"),
        ("inference:50052", "inference"),
        ("127.0.0.1:50052", ""),
        ("dns:///[::1]:50052", ""),
        ("[::1]:50052", ""),
        ("ipv4:10.0.0.1:50052,10.0.0.2:50052", ""),
        ("unix:/run/inference.sock", ""),
    ],
)
def test_the_name_that_grpc_looks_up(address, name):
    assert name_in(address) == name
