"""One caller that asks for too much harms no other: the bound of each attack stands in its test."""

import asyncio
import time
from contextlib import asynccontextmanager

import grpc
import psutil
import pytest
from google.protobuf.duration_pb2 import Duration

from pagantic.common.v1 import message_pb2
from pagantic.constraint.v1 import contract_pb2
from pagantic.orchestrator.v1 import execution_pb2, plan_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2_grpc as rpc

MIB = 1024 * 1024
HONEST_S = 20.0  # within which an honest caller is answered, whatever runs beside it


@asynccontextmanager
async def stub_of(system):
    options = [("grpc.max_send_message_length", 8 * MIB)]
    async with grpc.aio.insecure_channel(system.address("orchestrator"), options=options) as channel:
        yield rpc.OrchestratorServiceStub(channel)


def request(text="x", max_tokens=1, **fields):
    said = message_pb2.Message(role=message_pb2.ROLE_USER, content=text)
    hints = execution_pb2.ExecutionHints(max_tokens=max_tokens)
    return execution_pb2.SystemRequest(
        **({"mode": execution_pb2.MODE_CHAT, "messages": [said], "hints": hints} | fields)
    )


async def code_of(call):
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return "OK"


async def check_honest_caller(stub):
    response = await stub.Execute(request("hi", 4), timeout=HONEST_S)
    assert not response.HasField("error"), response.error


def journal_bytes(system):
    return sum(path.stat().st_size for path in system.state.glob("journal.sqlite3*"))


@pytest.mark.parametrize("seconds", [315_576_000_000, 60])
async def test_slots_cannot_be_held_by_waits_between_retries(system, seconds):
    """260 requests that would wait for years, or ten minutes each: all refused at once, nothing runs."""
    retry = plan_pb2.RetryPolicy(max_retries=10, backoff=Duration(seconds=seconds))
    hog = request(rules=[contract_pb2.Rule(name="n", expression="false")], retry=retry)
    async with stub_of(system) as stub:
        codes = await asyncio.gather(*(code_of(stub.Execute(hog, timeout=30)) for _ in range(260)))
        assert set(codes) == {"INVALID_ARGUMENT"}
        await check_honest_caller(stub)


async def test_the_journal_is_not_filled_by_large_requests(system):
    """Requests of 3.6 MiB are refused; twenty of 0.9 MiB that end leave less than 9 MiB behind, not 18.

    4 MiB are the write-ahead log; it grows by some requests when a read keeps a checkpoint waiting.
    """
    async with stub_of(system) as stub:
        codes = [await code_of(stub.Execute(request("x " * 1_900_000), timeout=30)) for _ in range(5)]
        assert codes == ["RESOURCE_EXHAUSTED"] * 5  # by gRPC, before it is read
        before = journal_bytes(system)
        for _ in range(20):
            await stub.Execute(request("x " * 450_000), timeout=60)
        assert journal_bytes(system) - before < 9 * MIB
        await check_honest_caller(stub)


async def test_a_flood_of_large_requests_is_bounded_in_memory(system):
    """200 requests of 0.9 MiB at once: each answered or RESOURCE_EXHAUSTED, the process grows by less than 512 MiB."""
    (process,) = (
        psutil.Process(one.pid)
        for one in psutil.net_connections("tcp")
        if one.status == psutil.CONN_LISTEN and one.laddr.port == system.ports["orchestrator"]
    )
    before, most = process.memory_info().rss, 0

    async def watch():
        nonlocal most
        while True:
            most = max(most, process.memory_info().rss)
            await asyncio.sleep(0.02)

    watching = asyncio.create_task(watch())
    async with stub_of(system) as stub:
        flood = request("x" * 900_000)
        codes = await asyncio.gather(*(code_of(stub.Execute(flood, timeout=60)) for _ in range(200)))
        watching.cancel()
        assert set(codes) <= {"OK", "RESOURCE_EXHAUSTED"}
        print(f"grew by {(most - before) / MIB:.0f} MiB, {codes.count('OK')} answered")  # noqa: T201
        assert most - before < 512 * MIB
        await check_honest_caller(stub)


@pytest.mark.whole
async def test_a_plan_of_many_steps_leaves_room_for_others(system):
    """64 steps that wait for none run eight at a time: a chat beside them is answered within 20 s."""
    steps = [plan_pb2.Step(name=f"s{number}", kind="infer") for number in range(63)]
    steps.append(plan_pb2.Step(name="end", kind="infer", depends_on=["s0"]))
    fields = {"mode": execution_pb2.MODE_PLAN, "plan": plan_pb2.ExecutionPlan(steps=steps)}
    async with stub_of(system) as stub:
        flood = asyncio.ensure_future(stub.Execute(request("Count to a hundred.", 24, **fields), timeout=240))
        await asyncio.sleep(0.5)
        started_s = time.monotonic()
        await check_honest_caller(stub)
        assert not flood.done(), f"the plan was over before the chat, {time.monotonic() - started_s:.1f} s"
        response = await flood
        assert not response.HasField("error"), response.error
        assert len(response.step_results) == 64


async def test_an_execution_does_not_outlast_the_longest_time(system):
    """A timeout of 317 years is refused, and one of a day is cut to an hour: gRPC gets no deadline that overflows."""
    async with stub_of(system) as stub:
        for seconds, code in ((9_999_999_999, "INVALID_ARGUMENT"), (86_400, "OK")):
            asked = request("hi")
            asked.hints.timeout.CopyFrom(Duration(seconds=seconds))
            assert await code_of(stub.Execute(asked, timeout=30)) == code
