"""Calls to a service that starts or restarts wait for it, over real sockets."""

import asyncio
import time
from collections import Counter
from contextlib import aclosing, asynccontextmanager

import pytest

from pagantic.inference.v1 import inference_service_pb2 as inference_pb
from pagantic.inference.v1 import inference_service_pb2_grpc as inference_rpc
from pagantic.tools.v1 import tools_service_pb2 as pb
from pagantic.tools.v1 import tools_service_pb2_grpc as rpc
from pagantic_common.domain.calls.breaker import THRESHOLD
from pagantic_common.domain.deadline import Deadline
from pagantic_common.domain.errors import DeadlineExceeded, Unreachable
from pagantic_common.rpc.channel import open_channel
from pagantic_common.rpc.peer import RECONNECT_S, Peer
from pagantic_common.telemetry.scope import work_scope
from tests.support.ports import free_ports
from tests.support.scripted_peers import ScriptedInference, ScriptedTools, served

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
PATIENCE_S = 20.0
SLACK_S = 1.0


async def answer(_call):
    pass


async def hang(_call):
    await asyncio.Event().wait()


@asynccontextmanager
async def peer_at(port, patience_s=PATIENCE_S):
    async with open_channel(f"127.0.0.1:{port}", max_message_bytes=MAX_MESSAGE_BYTES) as channel:
        yield Peer("tools", channel, patience_s=patience_s), channel


@pytest.fixture
def port():
    (free,) = free_ports(1)
    return free


def list_tools(peer, channel, timeout_s=20.0):
    return peer.call_unary(rpc.ToolServiceStub(channel).ListTools, pb.ListToolsRequest(), timeout_s)


def execute(peer, channel):
    return peer.call_unary(rpc.ToolServiceStub(channel).ExecuteTool, pb.ExecuteToolRequest(), 20.0)


def infer(peer, channel):
    return peer.call_stream(inference_rpc.InferenceServiceStub(channel).Infer, inference_pb.InferRequest(), 20.0)


async def first_of(stream):
    async with aclosing(stream):
        return await anext(stream)


async def one_message(_call):
    yield inference_pb.InferResponse()


class Balance:
    def __init__(self):
        self.counts = Counter()
        self.has_two = asyncio.Event()

    def add(self, amount, labels):
        self.counts[labels["service"]] += amount
        if self.counts["tools"] == 2:
            self.has_two.set()


async def test_calls_that_wait_are_counted_until_they_are_made_or_given_up(port, monkeypatch):
    waiting = Balance()
    monkeypatch.setattr("pagantic_common.rpc.peer.waiting_calls", waiting)
    async with peer_at(port) as (peer, channel):
        given_up, made = (asyncio.create_task(list_tools(peer, channel)) for _ in range(2))
        async with asyncio.timeout(PATIENCE_S):
            await waiting.has_two.wait()
        given_up.cancel()
        await asyncio.wait([given_up])
        assert waiting.counts == {"tools": 1}
        async with served(ScriptedTools(answer), port=port):
            await made
    assert waiting.counts == {"tools": 0}


async def test_calls_wait_for_a_service_that_does_not_listen_yet_however_many_and_whatever_they_do(port):
    tools, inference = ScriptedTools(answer), ScriptedInference(one_message)
    async with peer_at(port) as (peer, channel):
        calls = [asyncio.create_task(list_tools(peer, channel)) for _ in range(2 * THRESHOLD)]
        calls += [asyncio.create_task(execute(peer, channel)), asyncio.create_task(first_of(infer(peer, channel)))]
        await asyncio.sleep(1.5)  # the channel is in its backoff
        assert not any(call.done() for call in calls)
        async with served(tools, inference, port=port):
            await asyncio.gather(*calls)
    assert (tools.calls, inference.calls) == (2 * THRESHOLD + 1, 1)


async def test_a_wait_has_its_bound_and_later_calls_wait_only_as_long_as_a_reconnect(port):
    async with peer_at(port, patience_s=2 * RECONNECT_S) as (peer, channel):
        for bound_s in (2 * RECONNECT_S, RECONNECT_S):
            started_s = time.monotonic()
            with pytest.raises(
                Unreachable, match="the tools service cannot be reached: no connection within"
            ) as caught:
                await list_tools(peer, channel)
            assert bound_s <= time.monotonic() - started_s < bound_s + SLACK_S
            assert float(str(caught.value).split()[-2]) >= bound_s
        async with served(ScriptedTools(answer), port=port):
            await list_tools(peer, channel)


async def test_a_deadline_ends_the_wait(port):
    async with peer_at(port) as (peer, channel):
        started_s = time.monotonic()
        with (
            work_scope(deadline=Deadline.after(time.monotonic(), 0.3)),
            pytest.raises(DeadlineExceeded, match="while the tools service could not be reached"),
        ):
            await list_tools(peer, channel)
    assert time.monotonic() - started_s < 0.3 + SLACK_S


async def test_a_cancel_ends_the_wait(port):
    async with peer_at(port) as (peer, channel):
        calling = asyncio.create_task(list_tools(peer, channel))
        await asyncio.sleep(0.3)
        calling.cancel()
        started_s = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await calling
    assert time.monotonic() - started_s < SLACK_S


async def test_time_that_a_call_waits_is_not_taken_from_its_own(port):
    async with peer_at(port) as (peer, channel):
        calling = asyncio.create_task(list_tools(peer, channel, timeout_s=1.0))
        await asyncio.sleep(1.5)
        async with served(ScriptedTools(answer), port=port):
            await calling


@pytest.mark.parametrize(("call", "is_made_again"), [(list_tools, True), (execute, False)])
async def test_a_call_that_was_lost_is_made_again_when_the_service_is_back_if_it_changes_nothing(
    port, call, is_made_again
):
    lost, back = ScriptedTools(hang), ScriptedTools(answer)
    async with peer_at(port) as (peer, channel):
        async with served(lost, port=port):
            calling = asyncio.create_task(call(peer, channel))
            await lost.reached.wait()
        await asyncio.sleep(1.0)
        async with served(back, port=port):
            if is_made_again:
                await calling
            else:
                with pytest.raises(Unreachable):
                    await calling
    assert back.calls == int(is_made_again)


async def hang_at_first(call):
    if call == 1:
        await hang(call)


async def test_a_call_that_changes_nothing_is_made_again_where_no_answer_comes(port):
    tools = ScriptedTools(hang_at_first)
    async with served(tools, port=port), peer_at(port) as (peer, channel):
        stub = rpc.ToolServiceStub(channel)
        assert (
            await peer.call_unary(stub.ListTools, pb.ListToolsRequest(), 20.0, answer_s=0.2) == pb.ListToolsResponse()
        )
        tools.calls = 0
        with pytest.raises(DeadlineExceeded):
            await peer.call_unary(stub.ExecuteTool, pb.ExecuteToolRequest(), 0.4, answer_s=0.2)
    assert tools.calls == 1


async def test_the_callers_deadline_ends_the_attempts_of_a_call_without_an_answer(port):
    tools = ScriptedTools(hang)
    async with served(tools, port=port), peer_at(port) as (peer, channel):
        stub = rpc.ToolServiceStub(channel)
        with work_scope(deadline=Deadline(time.monotonic() + 0.5)), pytest.raises(DeadlineExceeded):
            await peer.call_unary(stub.ListTools, pb.ListToolsRequest(), 20.0, answer_s=0.3)
    assert tools.calls == 2


async def test_a_stream_that_is_lost_before_its_first_message_begins_again_and_after_it_does_not(port):
    async def silence(_call):
        reached.set()
        await asyncio.Event().wait()
        yield

    async def message_and_silence(_call):
        yield inference_pb.InferResponse()
        await asyncio.Event().wait()

    reached = asyncio.Event()
    async with peer_at(port) as (peer, channel):
        async with served(ScriptedInference(silence), port=port):
            beginning = asyncio.create_task(first_of(infer(peer, channel)))
            await reached.wait()
        async with served(ScriptedInference(message_and_silence), port=port):
            await beginning
            stream = infer(peer, channel)
            await anext(stream)
        async with served(ScriptedInference(one_message), port=port):
            with pytest.raises(Unreachable):
                await anext(stream)


async def test_failures_that_open_the_circuit_make_later_calls_wait_instead_of_failing(port):
    lost, back = ScriptedTools(hang), ScriptedTools(answer)
    async with peer_at(port) as (peer, channel):
        async with served(lost, port=port):
            calls = [asyncio.create_task(execute(peer, channel)) for _ in range(THRESHOLD)]
            while lost.calls < THRESHOLD:  # noqa: ASYNC110 - a count, not an event
                await asyncio.sleep(0.01)
        for calling in calls:
            with pytest.raises(Unreachable):
                await calling
        async with served(back, port=port):
            await asyncio.gather(*(execute(peer, channel) for _ in range(3)))
    assert back.calls == 3
