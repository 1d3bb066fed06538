"""The example of Envoy before replicas: it is valid, keeps prompts together, and hides what it safely can."""

import asyncio
import subprocess
from contextlib import AsyncExitStack, asynccontextmanager

import grpc
import pytest

from pagantic.inference.v1 import inference_service_pb2 as pb
from pagantic.inference.v1 import inference_service_pb2_grpc as rpc
from tests.bench.routing import cluster
from tests.support.needs import ENVOY
from tests.support.ports import free_ports
from tests.support.replicas import Replicas, program_of

WAIT_S = 60


@pytest.fixture(scope="module")
def envoy():
    return program_of(ENVOY, "envoy")


@pytest.fixture
def replicas(tmp_path, envoy):  # noqa: ARG001 - without the program nothing need be started
    with Replicas(tmp_path, 3, MAX_RUNNING="1", QUEUE_CAPACITY="1") as replicas:
        yield replicas


@pytest.fixture
async def proxy(tmp_path, envoy, replicas):
    """A stub of the replicas through Envoy, once it knows them all."""
    (port,) = free_ports(1)
    config = tmp_path / "envoy.json"
    config.write_text(cluster.envoy_config(replicas.addresses, port, "RING_HASH"))
    command = [envoy, "-c", str(config), "--use-dynamic-base-id", "-l", "warning", "--concurrency", "1"]
    with cluster.running(command, {}, tmp_path / "envoy.log"):
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", [("grpc.enable_retries", 0)]) as channel:
            stub = rpc.InferenceServiceStub(channel)
            async with asyncio.timeout(WAIT_S):
                while len(await prefixes_of(stub, replicas.addresses)) < 3:  # noqa: ASYNC110 - as a caller tries
                    await asyncio.sleep(0.5)
            yield stub


@asynccontextmanager
async def stubs_of(addresses):
    """Yield a stub of each replica itself."""
    async with AsyncExitStack() as stack:
        yield {
            address: rpc.InferenceServiceStub(await stack.enter_async_context(grpc.aio.insecure_channel(address)))
            for address in addresses
        }


def chat(text, max_tokens=4):
    request = pb.InferRequest(max_tokens=max_tokens)
    request.sampling.temperature = 0
    request.chat.messages.add(role="ROLE_USER", content=text)
    return request


def infer(stub, request, prefix):
    return stub.Infer(request, metadata=(("x-prefix", prefix),), timeout=WAIT_S)


async def answer(stub, prefix):
    return "".join([event.delta.content async for event in infer(stub, chat("Say a word."), prefix)])


async def outputs(addresses):
    """Return the tokens that each replica has given out."""
    async with stubs_of(addresses) as stubs:
        loads = {address: await stub.GetLoad(pb.GetLoadRequest()) for address, stub in stubs.items()}
    return {address: load.output_tokens_total for address, load in loads.items()}


async def until(stub, is_so):
    """Wait until the load of a replica is as it should be."""
    async with asyncio.timeout(WAIT_S):
        while not is_so(await stub.GetLoad(pb.GetLoadRequest())):  # noqa: ASYNC110 - as an operator looks
            await asyncio.sleep(0.05)


async def prefixes_of(proxy, addresses):
    """Return a prefix that goes to each replica, as far as some tries find one."""
    found = {}
    for number in range(12):
        before = await outputs(addresses)
        try:
            await answer(proxy, f"p{number}")
        except grpc.aio.AioRpcError:
            continue
        after = await outputs(addresses)
        (served,) = [address for address in addresses if after[address] > before[address]]
        found.setdefault(served, f"p{number}")
    return found


def test_the_example_is_valid(envoy):
    command = [envoy, "--mode", "validate", "-c", str(cluster.ENVOY_EXAMPLE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.timeout(300)
async def test_calls_of_one_prefix_stay_together_until_their_replica_dies(proxy, replicas):
    for address, prefix in (await prefixes_of(proxy, replicas.addresses)).items():
        before = await outputs(replicas.addresses)
        await answer(proxy, prefix)
        after = await outputs(replicas.addresses)
        assert [one for one in replicas.addresses if after[one] > before[one]] == [address]
    expected = await answer(proxy, prefix)
    streaming = infer(proxy, chat("Count to a thousand.", 900), prefix)
    async for event in streaming:
        if event.HasField("delta"):
            break
    replicas.kill(address)
    assert await answer(proxy, prefix) == expected  # at once, by another replica
    with pytest.raises(grpc.aio.AioRpcError) as raised:  # what was half said is not said again
        async for _event in streaming:
            pass
    assert raised.value.code() is grpc.StatusCode.INTERNAL  # what a stream that Envoy resets is for gRPC


@pytest.mark.timeout(300)
async def test_a_replica_that_is_full_is_passed_over(proxy, replicas):
    ((address, prefix), *_others) = (await prefixes_of(proxy, replicas.addresses)).items()
    async with stubs_of([address]) as stubs:
        own = stubs[address]
        held = [own.Infer(chat("Count to a thousand.", 900)) for _ in range(2)]
        await until(own, lambda load: load.queued_requests)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            async for _event in own.Infer(chat("Say a word.")):
                pass
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await answer(proxy, prefix)
        for call in held:
            call.cancel()


@pytest.mark.timeout(300)
async def test_a_caller_that_leaves_stops_the_decoding(proxy, replicas):
    ((address, prefix), *_others) = (await prefixes_of(proxy, replicas.addresses)).items()
    call = infer(proxy, chat("Count to a thousand.", 900), prefix)
    async for event in call:
        if event.HasField("delta"):
            break
    call.cancel()
    async with stubs_of([address]) as stubs:
        await until(stubs[address], lambda load: not load.running_sequences)
