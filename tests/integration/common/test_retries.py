"""What gRPC tries again on the channels that every service opens, over real sockets."""

import asyncio
import time

import pytest

from pagantic.inference.v1 import inference_service_pb2 as inference_pb
from pagantic.inference.v1 import inference_service_pb2_grpc as inference_rpc
from pagantic.tools.v1 import tools_service_pb2 as pb
from pagantic.tools.v1 import tools_service_pb2_grpc as rpc
from pagantic_common.domain.deadline import Deadline
from pagantic_common.domain.errors import ErrorCode, Overloaded, Unavailable
from pagantic_common.rpc.call import call_stream, call_unary
from pagantic_common.rpc.channel import open_channel
from pagantic_common.rpc.service_config import BUDGET_TOKENS, MAX_ATTEMPTS
from pagantic_common.rpc.status import Unreachable
from pagantic_common.telemetry.scope import work_scope
from pagantic_common.testing.server import serving
from tests.support.scripted_peers import ScriptedInference, ScriptedTools, served

MAX_MESSAGE_BYTES = 4 * 1024 * 1024


def failing(error, times=1000):
    async def behave(call):
        if call <= times:
            raise error

    return behave


async def hang(_call):
    await asyncio.Event().wait()


async def answer(_call):
    pass


def list_tools(channel, timeout_s=20.0, names=()):
    return call_unary("tools", rpc.ToolServiceStub(channel).ListTools, pb.ListToolsRequest(names=names), timeout_s)


def execute_tool(channel):
    return call_unary("tools", rpc.ToolServiceStub(channel).ExecuteTool, pb.ExecuteToolRequest(), 20.0)


async def infer(channel, responses):
    method = inference_rpc.InferenceServiceStub(channel).Infer
    async for response in call_stream("inference", method, inference_pb.InferRequest(), 20.0):
        responses.append(response)


async def test_a_call_that_changes_nothing_is_tried_again():
    service = ScriptedTools(failing(Unavailable("not now"), times=MAX_ATTEMPTS - 1))
    async with serving([service.registration()]) as (channel, _):
        await list_tools(channel)
    assert service.calls == MAX_ATTEMPTS


async def test_the_size_of_a_request_does_not_decide_whether_it_is_tried_again():
    service = ScriptedTools(failing(Unavailable("not now"), times=1))
    async with serving([service.registration()]) as (channel, _):
        await list_tools(channel, names=["x" * 1_000_000])
    assert service.calls == 2


async def test_a_tool_is_not_called_twice():
    service = ScriptedTools(failing(Unavailable("not now"), times=1))
    async with serving([service.registration()]) as (channel, _):
        with pytest.raises(Unavailable, match="not now"):
            await execute_tool(channel)
    assert service.calls == 1


@pytest.mark.parametrize(("call", "attempts_elsewhere"), [(list_tools, 1), (execute_tool, 0)])
async def test_a_replica_that_dies_is_replaced_by_another_but_not_for_a_tool_call(call, attempts_elsewhere):
    replicas = ScriptedTools(hang), ScriptedTools(hang)
    async with served(replicas[0]) as (first, port), served(replicas[1]) as (second, other_port):
        target = f"ipv4:127.0.0.1:{port},127.0.0.1:{other_port}"
        async with open_channel(target, max_message_bytes=MAX_MESSAGE_BYTES) as channel:
            calling = asyncio.create_task(call(channel))
            reached = [asyncio.create_task(replica.reached.wait()) for replica in replicas]
            await asyncio.wait(reached, return_when=asyncio.FIRST_COMPLETED)
            at = 0 if replicas[0].calls else 1
            replicas[1 - at].behave = answer
            await (first, second)[at].stop(grace=0)
            if attempts_elsewhere:
                await calling
            else:
                with pytest.raises(Unreachable):
                    await calling
            for waiting in reached:
                waiting.cancel()
    assert (replicas[at].calls, replicas[1 - at].calls) == (1, attempts_elsewhere)


async def test_a_stream_is_tried_again_before_its_first_message_and_not_after_it():
    async def behave(call):
        if call == 1:
            raise Unavailable("before the first message")
        yield inference_pb.InferResponse()
        raise Unavailable("after the first message")

    service, responses = ScriptedInference(behave), []
    async with serving([service.registration()]) as (channel, _):
        with pytest.raises(Unavailable, match="after the first message"):
            await infer(channel, responses)
    assert (service.calls, len(responses)) == (2, 1)


async def test_retries_do_not_multiply_an_outage():
    service, calls = ScriptedTools(failing(Unavailable("not now"))), 40
    async with serving([service.registration()]) as (channel, _):
        for _ in range(calls):
            with pytest.raises(Unavailable):
                await list_tools(channel)
    assert calls < service.calls <= calls + BUDGET_TOKENS


async def test_an_overloaded_service_is_called_again_when_it_says():
    service = ScriptedTools(failing(Overloaded("full", code=ErrorCode.INFERENCE_OVERLOADED, retry_after_s=0.5), 1))
    async with serving([service.registration()]) as (channel, _):
        started_s = time.monotonic()
        await list_tools(channel)
    assert service.calls == 2
    assert time.monotonic() - started_s >= 0.5


@pytest.mark.parametrize(
    "error",
    [
        Overloaded("full"),  # nobody knows when to come back
        Overloaded("full", retry_after_s=60.0),  # the deadline would pass meanwhile
        Unavailable("what it needs is not there", retry_after_s=0.1),  # it was tried again already, further on
    ],
)
async def test_a_wait_that_does_not_help_is_not_begun(error):
    service = ScriptedTools(failing(error))
    async with serving([service.registration()]) as (channel, _):
        with work_scope(deadline=Deadline.after(time.monotonic(), 20.0)), pytest.raises(type(error)) as caught:
            await list_tools(channel, 60.0)
    assert service.calls == 1
    assert caught.value.retry_after_s == error.retry_after_s


async def test_cancelling_ends_the_wait_for_a_retry():
    service = ScriptedTools(failing(Overloaded("full", retry_after_s=0.4)))
    async with serving([service.registration()]) as (channel, _):
        calling = asyncio.create_task(list_tools(channel))
        await service.reached.wait()
        await asyncio.sleep(0.1)  # the refusal arrives
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        await asyncio.sleep(0.6)  # a retry would have arrived by then
    assert service.calls == 1


async def test_a_call_to_a_service_that_is_not_there_fails_with_its_name():
    async with served() as (_, port):
        pass
    async with open_channel(f"127.0.0.1:{port}", max_message_bytes=MAX_MESSAGE_BYTES) as channel:
        with pytest.raises(Unreachable, match="the tools service cannot be reached") as caught:
            await list_tools(channel)
    assert caught.value.code is None
    assert caught.value.retry_after_s
