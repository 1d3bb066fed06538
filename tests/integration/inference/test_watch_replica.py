"""What a replica reports to callers that choose among replicas."""

import asyncio
import contextlib

import pytest

from pagantic.common.v1 import message_pb2
from pagantic.inference.v1 import generation_pb2
from pagantic.inference.v1 import inference_service_pb2 as pb
from pagantic.inference.v1 import inference_service_pb2_grpc as rpc
from pagantic_common.domain.errors import InvalidRequest, Overloaded
from pagantic_common.rpc.call import call_stream
from pagantic_common.telemetry.clock import SystemClock
from pagantic_common.testing.scripted_engine import ScriptedEngine
from pagantic_common.testing.server import serving
from services.inference.app.models import Models, ModelSpec
from services.inference.app.replica_watch import MAX_WATCHERS, ReplicaWatch
from tests.support.inference_app import generation_over, registration_of, served

BLOCK = 16


@contextlib.asynccontextmanager
async def inference(engine, **options):
    generation = generation_over(engine, **options)
    models = Models([ModelSpec(engine.model, 0)], lambda _spec: served(generation))
    try:
        async with models.use(""), serving([registration_of(models)]) as (channel, _address):
            yield rpc.InferenceServiceStub(channel)
    finally:
        await generation.close()


def watched(stub, seconds=0.05):
    request = pb.WatchReplicaRequest()
    request.interval.FromMilliseconds(round(seconds * 1000))
    return call_stream("inference", stub.WatchReplica, request, 10.0)


def chat(text, keys, **fields):
    message = message_pb2.Message(role=message_pb2.ROLE_USER, content=text)
    prefixes = generation_pb2.PromptPrefixes(keys=keys, block_bytes=BLOCK, prompt_bytes=len(text))
    prompt = generation_pb2.ChatPrompt(messages=[message])
    return pb.InferRequest(chat=prompt, prefixes=prefixes, **{"max_tokens": 3, **fields})


async def infer(stub, request):
    return [event async for event in call_stream("inference", stub.Infer, request, 10.0)]


async def test_a_watcher_learns_what_comes_into_the_cache_and_what_goes():
    engine = ScriptedEngine("abc", kv_capacity_tokens=200, context_window=190)
    async with inference(engine, max_parked_bytes=0) as stub, contextlib.aclosing(watched(stub)) as reports:
        first = await anext(reports)
        assert (list(first.added_keys), first.load.sequence_capacity) == ([], 8)
        await infer(stub, chat("a" * 150, range(1, 10)))
        async for report in reports:
            if report.added_keys:
                assert set(report.added_keys) == set(range(1, 10))
                break
        await infer(stub, chat("b" * 150, range(11, 20)))
        gone = set()
        async for report in reports:
            gone.update(report.removed_keys)
            if 9 in gone:
                break
        assert gone <= set(range(1, 10))


async def test_a_later_watcher_gets_every_key_at_once():
    async with inference(ScriptedEngine("abc")) as stub:
        await infer(stub, chat("a" * 150, range(1, 10)))
        async with contextlib.aclosing(watched(stub)) as reports:
            assert set((await anext(reports)).added_keys) == set(range(1, 10))


async def test_tenants_callers_and_models_need_not_name_prefixes():
    async with inference(ScriptedEngine("abc")) as stub:
        await infer(stub, pb.InferRequest(text="hello", max_tokens=2))
        async with contextlib.aclosing(watched(stub)) as reports:
            assert not (await anext(reports)).added_keys


@pytest.mark.parametrize(
    ("keys", "block", "size", "problem"),
    [
        (range(513), 1, 600, "513 keys"),
        (range(4), 0, 600, "blocks of 0 bytes"),
        (range(4), 100, 399, "at most prompt_bytes, 399"),
    ],
)
async def test_prefixes_that_cannot_be_are_refused(keys, block, size, problem):
    request = chat("hi", ())
    request.prefixes.CopyFrom(generation_pb2.PromptPrefixes(keys=keys, block_bytes=block, prompt_bytes=size))
    async with inference(ScriptedEngine("abc")) as stub:
        with pytest.raises(InvalidRequest, match=problem):
            await infer(stub, request)


@pytest.mark.parametrize("seconds", [0.0, 0.04, 61.0])
async def test_an_interval_out_of_range_is_refused(seconds):
    async with inference(ScriptedEngine("abc")) as stub:
        with pytest.raises(InvalidRequest, match=r"it must be between 0\.05 and 60 s"):
            await anext(watched(stub, seconds))


async def test_the_number_of_watchers_is_bounded():
    watch = ReplicaWatch(Models([ModelSpec(ScriptedEngine("abc").model, 0)], None), SystemClock())
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(MAX_WATCHERS):
            await anext(await stack.enter_async_context(contextlib.aclosing(watch.reports(60.0))))
        with pytest.raises(Overloaded, match=f"{MAX_WATCHERS} callers watch"):
            await anext(watch.reports(60.0))
    await anext(watch.reports(60.0))


async def test_reports_end_when_the_server_drains():
    watch = ReplicaWatch(Models([ModelSpec(ScriptedEngine("abc").model, 0)], None), SystemClock())
    reports = watch.reports(60.0)
    await anext(reports)
    ending = asyncio.create_task(anext(reports, None))
    await asyncio.sleep(0)
    watch.stop()
    assert await ending is None
