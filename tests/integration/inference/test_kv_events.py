"""What gateways learn of the cache: blocks of tokens over a real port, replayed as SMG's index does."""

import asyncio
import contextlib

import grpc
import pytest
from smg_grpc_proto.generated import common_pb2
from smg_grpc_proto.generated import vllm_engine_pb2 as pb
from smg_grpc_proto.generated import vllm_engine_pb2_grpc as rpc

from pagantic_common.domain.calls.principal import work_of
from pagantic_common.domain.errors import Overloaded, Unsupported
from pagantic_common.domain.messages import Message, Role
from pagantic_common.rpc.access.registration import Registration
from pagantic_common.rpc.call import call_stream, call_unary
from pagantic_common.telemetry.clock import SystemClock
from pagantic_common.telemetry.scope import work_scope
from pagantic_common.testing.scripted_engine import ScriptedEngine
from pagantic_common.testing.server import serving
from services.inference.app import block_events, replica_watch
from services.inference.app.block_events import BlockEvents
from services.inference.app.models import Models, ModelSpec
from services.inference.app.replica_watch import ReplicaWatch
from services.inference.core.cached_blocks import BLOCK_TOKENS, MAX_HISTORY
from services.inference.core.generation import ChatPrompt, InferenceRequest
from services.inference.vllm.events import BatchEncoder, KvEvents
from services.inference.vllm.servicer import SCOPES, SERVICE_NAME, VllmEngineServicer
from tests.support.block_index import BlockIndex
from tests.support.inference_app import generation_over, served

TEXT = b"You keep the lighthouse of the bay, and it is late in the year."
WAIT_S = 10


class Replica:
    """The engine behind a port, which stops its events as a server does that drains."""

    def __init__(self, generation, stub, watch, events):
        self.generation = generation
        self.stub = stub
        self.watch = watch
        self.events = events


@contextlib.asynccontextmanager
async def replica_of(engine=None, *, has_events=True, max_history=MAX_HISTORY, **options):
    generation = generation_over(engine or ScriptedEngine("abc"), **options)
    models = Models([ModelSpec(generation.engine.model, 0)], lambda _spec: served(generation))
    watch = ReplicaWatch(models, SystemClock())
    events = BlockEvents(models, watch, SystemClock(), max_history=max_history)
    servicer = VllmEngineServicer(models, clock=SystemClock(), events=KvEvents(events) if has_events else None)
    registration = Registration(SERVICE_NAME, servicer.add_to, SCOPES)
    async with serving([registration]) as (channel, _address), models.use(""):
        yield Replica(generation, rpc.VllmEngineStub(channel), watch, events)
    await models.close()


class Gateway:
    """A subscriber with its index."""

    def __init__(self, stub, index=None, sequence=0):
        self.index = index or BlockIndex()
        request = common_pb2.SubscribeKvEventsRequest(start_sequence_number=sequence)
        self._batches = call_stream("inference", stub.SubscribeKvEvents, request, 60.0)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_exc):
        await self._batches.aclose()

    async def next(self):
        async with asyncio.timeout(WAIT_S):
            batch = await anext(self._batches)
        self.index.apply(batch)
        return batch

    async def until(self, is_so):
        while not is_so(self.index):
            await self.next()


async def generate(stub, tokens, **sampling):
    params = pb.SamplingParams(max_tokens=3, temperature=0, **sampling)
    request = pb.GenerateRequest(request_id=str(hash(bytes(tokens))), sampling_params=params)
    request.tokenized.input_ids.extend(tokens)
    return [response async for response in call_stream("inference", stub.Generate, request, 10.0)]


def beginnings(tokens):
    return {tuple(tokens[:end]) for end in range(BLOCK_TOKENS, len(tokens) + 1, BLOCK_TOKENS)}


async def test_a_subscriber_learns_what_comes_into_the_cache_and_what_goes():
    engine = ScriptedEngine("abc", kv_capacity_tokens=200, context_window=190)
    async with replica_of(engine, max_parked_bytes=0) as replica, Gateway(replica.stub) as gateway:
        first = await gateway.next()
        assert (first.snapshot.count, first.snapshot.blocks) == (1, 0)
        await generate(replica.stub, TEXT)
        await gateway.until(lambda index: beginnings(TEXT) <= index.beginnings)
        await generate(replica.stub, b"b" * 180)
        await gateway.until(lambda index: not beginnings(TEXT) & index.beginnings)
        assert gateway.index.snapshots == 1


async def test_parked_tokens_stay_known():
    engine = ScriptedEngine("abc", kv_capacity_tokens=200, context_window=190)
    async with replica_of(engine, max_parked_bytes=1000) as replica, Gateway(replica.stub) as gateway:
        await generate(replica.stub, TEXT)
        await generate(replica.stub, b"b" * 180)
        await gateway.until(lambda index: beginnings(b"b" * 180) <= index.beginnings)
        assert engine.parked
        assert beginnings(TEXT) <= gateway.index.beginnings


async def test_a_later_subscriber_gets_what_is_there_at_once():
    async with replica_of() as replica:
        await generate(replica.stub, TEXT)
        async with Gateway(replica.stub) as gateway:
            await gateway.next()
            assert beginnings(TEXT) <= gateway.index.beginnings


async def test_a_subscriber_that_comes_back_continues_where_it_was():
    async with replica_of() as replica:
        async with Gateway(replica.stub) as gateway:
            await generate(replica.stub, TEXT)
            await gateway.until(lambda index: beginnings(TEXT) <= index.beginnings)
        index = gateway.index
        await generate(replica.stub, TEXT[::-1])
        async with Gateway(replica.stub, index, index.sequence + 1) as gateway:
            await gateway.until(lambda index: beginnings(TEXT[::-1]) <= index.beginnings)
        assert index.snapshots == 1


@pytest.mark.parametrize("behind", [-1000, 1000])
async def test_a_number_of_another_time_gets_a_snapshot(behind):
    async with replica_of() as replica:
        await generate(replica.stub, TEXT)
        async with Gateway(replica.stub) as first:
            await first.next()
        async with Gateway(replica.stub, sequence=first.index.sequence + behind) as gateway:
            await gateway.next()
            assert gateway.index.snapshots == 1
            assert gateway.index.beginnings == first.index.beginnings


async def test_a_reader_that_falls_behind_gets_a_snapshot_and_misses_nothing():
    async with replica_of(max_history=4) as replica:
        with work_scope(principal=work_of("default")):
            reports = replica.events.reports(0)
            index, encoder = BlockIndex(), BatchEncoder()
            index.apply(encoder.encode(await anext(reports)))  # and now it reads no more
            async with Gateway(replica.stub) as gateway:
                for text in (TEXT, TEXT[::-1], TEXT.upper()):
                    await generate(replica.stub, text)
                    await gateway.until(lambda known, text=text: beginnings(text) <= known.beginnings)
            while index.beginnings != gateway.index.beginnings:
                index.apply(encoder.encode(await anext(reports)))
            assert index.snapshots == 2
            await reports.aclose()


async def test_the_load_comes_with_batches_and_without():
    async with replica_of(queue_capacity=7) as replica, Gateway(replica.stub) as gateway:
        first = await gateway.next()
        assert first.load.max_running_requests == 8
        assert first.load.max_total_num_tokens == 4096
        assert not first.load.HasField("engine_silence_ms")
        await generate(replica.stub, TEXT)
        await gateway.until(lambda index: beginnings(TEXT) <= index.beginnings)
        beat = await gateway.next()
        while not beat.load.load_only:
            beat = await gateway.next()
        again = await gateway.next()
        assert again.load.load_only
        assert again.sequence_number == beat.sequence_number
        assert again.load.num_used_tokens > 0
        assert again.load.active_token_usage == 0 < again.load.token_usage
        samples = [record.sample for record in gateway.index.records]
        assert samples == list(range(1, len(samples) + 1))


async def test_a_request_that_runs_and_one_that_waits_are_counted():
    free = asyncio.Event()
    loop = asyncio.get_running_loop()
    held = ScriptedEngine("abc", on_decode=lambda _: asyncio.run_coroutine_threadsafe(free.wait(), loop).result(20))
    async with replica_of(held, max_running=1) as replica, Gateway(replica.stub) as gateway:
        first = asyncio.create_task(generate(replica.stub, TEXT))
        await gateway.until(lambda index: index.records and index.records[-1].running_requests)
        second = asyncio.create_task(generate(replica.stub, TEXT[::-1]))
        await gateway.until(lambda index: index.records[-1].waiting_requests)
        record = gateway.index.records[-1]
        assert record.waiting_uncached_tokens == len(TEXT)
        assert record.prefill_pending_tokens == 2 * len(TEXT)
        assert record.engine_reports_steps
        assert record.HasField("engine_silence_ms")
        free.set()
        await asyncio.gather(first, second)


async def test_a_tenant_learns_nothing_of_another_ones_prompts():
    declared = "You keep the lighthouse of the bay."
    system = f"{declared}\n\nYou are {'very ' * 10}old."

    def asked(question):
        return InferenceRequest(ChatPrompt((Message(Role.SYSTEM, system), Message(Role.USER, question))), max_tokens=1)

    async def known(tenant):
        with work_scope(principal=work_of(tenant)):
            async with contextlib.aclosing(replica.events.reports(0)) as reports:
                index = BlockIndex()
                index.apply(BatchEncoder().encode(await anext(reports)))
                return {bytes(beginning) for beginning in index.beginnings}

    async with replica_of(shared_prompts=[declared]) as replica:
        with work_scope(principal=work_of("a")):
            async for _event in replica.generation.infer(asked("Who are you?")):
                pass
        assert any(declared.encode() in beginning for beginning in await known("a"))
        assert await known("b") == set()
        with work_scope(principal=work_of("b")):
            async for _event in replica.generation.infer(asked("What do you see?")):
                pass
        assert any(b"What do" in beginning for beginning in await known("b"))
        assert not any(b"Who are" in beginning for beginning in await known("b"))


async def test_the_number_of_tenants_that_are_followed_is_bounded(monkeypatch):
    monkeypatch.setattr(block_events, "MAX_LOGS", 2)
    async with replica_of() as replica:
        async with contextlib.AsyncExitStack() as stack:
            for tenant in "abcd":
                with work_scope(principal=work_of(tenant)):
                    reports = await stack.enter_async_context(contextlib.aclosing(replica.events.reports(0)))
                    assert (await anext(reports)).batch.snapshot
        assert len(replica.events._logs) == 2


async def test_subscribers_and_watchers_are_bounded_together(monkeypatch):
    monkeypatch.setattr(replica_watch, "MAX_WATCHERS", 2)
    async with replica_of() as replica:
        watch = replica.watch.reports(60.0)
        await anext(watch)
        async with Gateway(replica.stub) as gateway:
            await gateway.next()
            with pytest.raises(Overloaded, match="2 callers watch"):
                await Gateway(replica.stub).next()
        async with asyncio.timeout(WAIT_S):  # the call that was cancelled gives its place back
            while True:
                with contextlib.suppress(Overloaded):
                    async with Gateway(replica.stub) as gateway:
                        await gateway.next()
                        break
        await watch.aclose()


async def test_a_server_that_drains_ends_its_events():
    async with replica_of() as replica, Gateway(replica.stub) as gateway:
        await gateway.next()
        replica.watch.stop()
        with pytest.raises(StopAsyncIteration):
            await gateway.until(lambda _index: False)


async def test_a_deadline_ends_the_events():
    async with replica_of() as replica:
        call = replica.stub.SubscribeKvEvents(common_pb2.SubscribeKvEventsRequest(), timeout=0.3)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            async for _batch in call:
                pass
        assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_events_are_not_told_unless_the_operator_allows_it():
    async with replica_of(has_events=False) as replica:
        with pytest.raises(Unsupported, match="PAGANTIC_INFERENCE_VLLM_KV_EVENTS"):
            await Gateway(replica.stub).next()
        info = await call_unary("inference", replica.stub.GetServerInfo, pb.GetServerInfoRequest(), 5.0)
        assert info.server_type == "pagantic"


async def test_an_engine_that_is_changed_has_an_empty_cache():
    async with replica_of() as replica, Gateway(replica.stub) as gateway:
        await generate(replica.stub, TEXT)
        await gateway.until(lambda index: beginnings(TEXT) <= index.beginnings)
        await asyncio.wrap_future(replica.generation.loop.when_idle(lambda: None))
        await gateway.until(lambda index: not index.beginnings)
        assert gateway.index.snapshots == 1
