"""What goes wrong in the engine, and what is left behind."""

import asyncio
import gc
import threading
import time

import pytest

from pagantic_common.domain.errors import Cancelled, ErrorCode, Internal, Unavailable
from pagantic_common.telemetry.clock import SystemClock
from pagantic_common.testing.scripted_engine import ScriptedEngine
from services.inference.app.models import Models, ModelSpec
from services.inference.app.replica_watch import wait_until_broken
from services.inference.core.decoding.output import SampledOutput
from services.inference.core.generation import Delta, InferenceRequest
from tests.support.inference_app import generation_over, served


async def test_closing_stops_what_still_decodes_within_a_step():
    reached = threading.Event()
    engine = ScriptedEngine("x" * 400, on_decode=lambda _tokens: reached.set() or time.sleep(0.01))
    generation = generation_over(engine)
    request = InferenceRequest(prompt="hi", max_tokens=400)

    async def consume():
        async for _ in generation.infer(request):
            pass

    running = asyncio.create_task(consume())
    await asyncio.to_thread(reached.wait, 5)
    await generation.close()
    assert len(engine.batches) < 100
    with pytest.raises(Cancelled):
        await running


async def test_a_stuck_step_ends_its_streams_and_is_told_to_health():
    hold = threading.Event()
    generation = generation_over(ScriptedEngine("x" * 50, on_decode=lambda _slices: hold.wait(20)))
    models = Models([ModelSpec(generation.engine.model, 0)], lambda _spec: served(generation))
    async with models.use(""):
        waiting = asyncio.create_task(collect_events(generation))
        reason = await wait_until_broken(models, step_timeout_s=0.05, clock=SystemClock(), interval_s=0.01)
        assert "longer than 0.05 s" in reason
        with pytest.raises(Unavailable, match="longer than") as failed:
            await waiting
        assert failed.value.code is ErrorCode.INFERENCE_MODEL_UNAVAILABLE
        with pytest.raises(Unavailable, match="broken") as refused:
            await collect_events(generation)
        assert refused.value.code is ErrorCode.INFERENCE_MODEL_UNAVAILABLE
    hold.set()
    await models.close()


async def test_a_dead_thread_ends_its_streams_and_is_told_to_health():
    def die(_slices):
        raise MemoryError

    generation = generation_over(ScriptedEngine(on_decode=die))
    models = Models([ModelSpec(generation.engine.model, 0)], lambda _spec: served(generation))
    async with models.use(""):
        with pytest.raises(Unavailable, match="died of MemoryError"):
            await collect_events(generation)
        assert "MemoryError" in await wait_until_broken(models, step_timeout_s=9, clock=SystemClock())
    await models.close()


async def test_whoever_waits_or_runs_when_the_engine_breaks_is_told_at_once_and_nobody_is_let_in():
    reached, release = threading.Event(), threading.Event()

    def die(_slices):
        reached.set()
        release.wait(60)
        raise ZeroDivisionError

    generation = generation_over(ScriptedEngine(on_decode=die), max_running=1)
    running = [asyncio.create_task(collect_events(generation)) for _ in range(4)]
    await asyncio.to_thread(reached.wait, 5)
    while generation.loop.scheduler.waiting < len(running) - 1:  # noqa: ASYNC110 - the engine tells nobody who waits
        await asyncio.sleep(0.01)
    changed = generation.loop.when_idle(lambda: None)
    release.set()
    async with asyncio.timeout(60):
        for outcome in await asyncio.gather(*running, return_exceptions=True):
            assert isinstance(outcome, Unavailable)
            assert outcome.code is ErrorCode.INFERENCE_MODEL_UNAVAILABLE
            assert outcome.failure.retryable
        with pytest.raises(Unavailable):
            await asyncio.wrap_future(changed)
        with pytest.raises(Unavailable, match="broken"):
            await collect_events(generation)
    await generation.close()


class Panic(BaseException):
    """As pyo3 raises it: not an Exception."""


@pytest.mark.parametrize("error", [IndexError("no token"), Panic("of a library")])
async def test_an_error_in_one_requests_sampling_ends_that_request_and_no_other(monkeypatch, error):
    rank = SampledOutput.rank

    def fail_for_one(output, logits):
        if output._max_tokens == 13:
            raise error
        return rank(output, logits)

    monkeypatch.setattr(SampledOutput, "rank", fail_for_one)
    generation = generation_over(ScriptedEngine("fine"))

    async def ask(max_tokens, count=1):
        request = InferenceRequest(prompt="hi", max_tokens=max_tokens, candidate_count=count)
        return [event async for event in generation.infer(request)]

    good, bad, fair = await asyncio.gather(ask(20), ask(13, count=3), ask(20), return_exceptions=True)
    assert isinstance(bad, RuntimeError)
    assert bad.__cause__ is error
    for events in (good, fair, await ask(20)):
        assert "".join(event.content for event in events if isinstance(event, Delta)) == "fine"
    assert not generation.loop.broken_because
    assert generation.loop.scheduler.running == generation.loop.scheduler.waiting == 0
    await generation.close()


async def test_a_failing_step_ends_its_requests_and_the_next_is_served():
    failures = [Internal("llama_decode gave -3", code=ErrorCode.INFERENCE_ENGINE_ERROR)]

    def fail_once(_slices):
        if failures:
            raise failures.pop()

    generation = generation_over(ScriptedEngine("fine", on_decode=fail_once))
    with pytest.raises(Internal, match="gave -3"):
        await collect_events(generation)
    events = await collect_events(generation)
    assert "".join(event.content for event in events if isinstance(event, Delta)) == "fine"
    await generation.close()


async def collect_events(generation):
    return [event async for event in generation.infer(InferenceRequest(prompt="hi", max_tokens=20))]


@pytest.mark.whole
async def test_thousands_of_requests_leave_nothing_behind():
    engine = ScriptedEngine("ok", kv_capacity_tokens=600)
    generation = generation_over(engine, queue_capacity=100)

    async def ask(number):
        prompt = f"{number % 97} " * (1 + number % 7)
        request = InferenceRequest(prompt=prompt, max_tokens=3, candidate_count=1 + number % 3)
        stream = generation.infer(request)
        async for _ in stream:
            if number % 5 == 0:
                break
        await stream.aclose()

    async def ask_many(first, count):
        for start in range(first, first + count, 20):
            await asyncio.gather(*(ask(number) for number in range(start, start + 20)))

    await ask_many(0, 200)
    gc.collect()
    before = len(gc.get_objects())
    await ask_many(200, 10_000)
    async with asyncio.timeout(60):
        while generation.loop.scheduler.has_work:  # noqa: ASYNC110 - the engine's thread tells nobody that it idles
            await asyncio.sleep(0.01)
    gc.collect()
    engine.batches.clear()
    assert len(gc.get_objects()) < before * 1.05
    assert generation.loop.scheduler.waiting == generation.loop.scheduler.running == 0
    assert not generation.loop._deliver
    assert not generation._running
    assert engine.kv_used_tokens == generation.loop.scheduler.tree.used_tokens <= 256
    await generation.close()


async def test_a_change_waits_for_who_is_decoded_and_who_comes_meanwhile_waits_for_it():
    reached, release, order = threading.Event(), threading.Event(), []

    def decode(_slices):
        order.append("step")
        reached.set()
        release.wait(60)

    def change(then=lambda: None):
        order.append("change")
        for sequence_id in range(engine.max_sequences):
            engine.truncate(sequence_id, 0)
        then()

    engine = ScriptedEngine("abc", on_decode=decode)
    generation = generation_over(engine)
    first = asyncio.create_task(collect_events(generation))
    await asyncio.to_thread(reached.wait, 5)
    changed = generation.loop.when_idle(change)
    release.set()
    await first
    await asyncio.wrap_future(changed)
    assert order.index("change") == len(order) - 1
    await collect_events(generation)
    with pytest.raises(ZeroDivisionError):
        await asyncio.wrap_future(generation.loop.when_idle(lambda: change(lambda: 1 // 0)))
    await collect_events(generation)
    await generation.close()
    with pytest.raises(Unavailable):
        await asyncio.wrap_future(generation.loop.when_idle(change))
