"""Tuning with the real engine: measured in a child process that goes when it is told to, applied, and kept."""

import asyncio
import importlib.metadata
import time
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest

from pagantic_common.domain.errors import PreconditionFailed
from pagantic_common.domain.messages import ModelInfo
from services.inference.adapters import tuning
from services.inference.adapters.default_model import find_default_model
from services.inference.adapters.llama.cache import EngineOptions
from services.inference.adapters.llama.engine import LlamaCppEngine
from services.inference.adapters.llama.weights import TILE_TOKENS
from services.inference.adapters.tuning import ChildProber, Machine, TuningFile, check_engine
from services.inference.core.generation import Delta, InferenceRequest
from services.inference.core.tuning import Way, choose, untuned
from services.inference.ports import MeasuringFailed
from tests.support.inference_app import generation_over


@pytest.fixture
def machine():
    return Machine(find_default_model(), gpu_layers=0)


def children():
    return [child for child in psutil.Process().children() if tuning.PROBE in child.cmdline()]


@pytest.mark.whole
async def test_rounds_measure_every_candidate_and_closing_kills_the_child(machine, monkeypatch):
    monkeypatch.setattr(tuning, "STEP_SIZES", (32, 64))
    monkeypatch.setattr(tuning, "LONG_TOKENS", 256)
    monkeypatch.setattr(tuning, "NICENESS", 0)
    async with aclosing(ChildProber(machine, lambda: True).rounds()) as rounds:
        one = await anext(rounds)
        assert len(children()) == 1
    assert not children()
    measured = one.measured
    assert set(measured.threads_ms) == {machine.cores, machine.cores // 2} - {0}
    assert {is_on: len(row) for is_on, row in measured.flash_ms.items()} == {False: 4, True: 4}
    assert 32 in measured.prompt_rates[True]  # 64 is left out where a step of it would take too long
    assert min(measured.values().values()) > 0
    assert one.others_cores >= 0
    assert choose(measured, untuned(machine.cores)).step_tokens in measured.prompt_rates[False]


def test_another_build_of_the_engine_has_its_own_results(machine, monkeypatch):
    def key_with(record, version="1"):
        engine = SimpleNamespace(version=version, read_text=lambda _name: record)
        monkeypatch.setattr(importlib.metadata, "distribution", lambda _name: engine)
        return machine.key()

    library = "llama_cpp/lib/libggml-cpu.so,sha256=a,1\n"
    known = key_with(library)
    assert key_with(library + "llama_cpp/__pycache__/llama.pyc,,\n") == known
    assert len({known, key_with(library.replace("a,1", "b,1")), key_with(None), key_with(None, "2")}) == 4


async def test_a_machine_with_a_cache_of_8_bits_is_measured_with_it_and_has_its_own_results(machine):
    small = replace(machine, cache_type="q8_0")
    assert small.key() != machine.key()
    async with reading_a_round(small):
        (child,) = children()
        assert '"key_type": "q8_0", "value_type": "q8_0"' in child.cmdline()[-1]
    assert not children()


@asynccontextmanager
async def reading_a_round(machine):
    """Run the block while a round is measured, which has not ended yet."""
    reading = asyncio.create_task(anext(ChildProber(machine, lambda: True).rounds()))
    async with asyncio.timeout(30):
        while not children():  # noqa: ASYNC110 - another process has no event to wait for
            await asyncio.sleep(0.01)
    yield
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


async def test_a_request_that_comes_while_a_round_runs_does_not_wait_for_it(machine):
    async with reading_a_round(machine):
        started_s = time.monotonic()
    assert time.monotonic() - started_s < 0.5
    assert not children()


async def test_a_child_that_cannot_measure_is_told_of(machine, monkeypatch):
    monkeypatch.setattr(tuning, "PROBE", "no.such.module")
    with pytest.raises(MeasuringFailed, match="ended with 1"):
        await anext(ChildProber(machine, lambda: True).rounds())


async def test_nothing_is_measured_where_memory_is_short(machine, monkeypatch):
    monkeypatch.setattr(tuning, "free_memory_bytes", lambda: 100 * 2**20)
    assert (await ChildProber(machine, lambda: True).why_not()).startswith("100 MiB of memory are free")


def test_what_was_measured_is_kept_with_what_the_engine_runs_with(machine, tmp_path):
    file = TuningFile(machine, tmp_path / "tuning")
    assert file.load() is None
    file.use_extra_bufts = False
    assert file.save(None) == ""
    assert file.load() == tuning.StoredTuning(use_extra_bufts=False)
    kept = replace(untuned(2), ways=(Way((1.0, 2.0, 3.0, 4.0), 64), Way((5.0, 6.0, 7.0, 8.0), 128)))
    file.save(kept)
    assert file.load() == tuning.StoredTuning(use_extra_bufts=False, tuning=kept)
    (path,) = (tmp_path / "tuning").iterdir()
    path.write_text("{")
    assert file.load() is None


def test_a_folder_that_cannot_be_written_is_named(machine, tmp_path):
    (tmp_path / "file").write_text("")
    assert "file/tuning cannot be written" in TuningFile(machine, tmp_path / "file" / "tuning").save(None)


async def test_an_engine_that_dies_only_with_extra_buffers_goes_without(machine, monkeypatch):
    async def check(_machine, *, use_extra_bufts):
        return -11 if use_extra_bufts or dies_always else 0

    dies_always = False
    monkeypatch.setattr(tuning, "_check", check)
    assert await check_engine(machine) is False
    dies_always = True
    with pytest.raises(PreconditionFailed, match="dies on this machine"):
        await check_engine(machine)


async def test_the_real_engine_lives_on_this_cpu(machine):
    assert await check_engine(machine) is True


async def test_the_real_engine_changes_between_requests_and_answers_as_before():
    options = EngineOptions(context_tokens=256, kv_tokens=512, max_sequences=16, batch_tokens=32, threads=1)
    engine = LlamaCppEngine(find_default_model(), ModelInfo("real", 256), options)
    generation = generation_over(engine)

    async def text():
        request = InferenceRequest(prompt="The capital of France is", max_tokens=12)
        return "".join([event.content async for event in generation.infer(request) if isinstance(event, Delta)])

    before = await text()
    changes = {"threads": 2, "flash_attention": True, "batch_tokens": 64}
    running = [asyncio.create_task(text()) for _ in range(3)]
    change = generation.loop.when_idle(lambda: engine.retune(**changes))
    running += [asyncio.create_task(text()) for _ in range(3)]
    texts = await asyncio.gather(*running)
    await asyncio.wrap_future(change)
    limits = generation.loop.scheduler.limits
    assert engine.max_batch_tokens == limits.step_tokens == TILE_TOKENS - 1
    assert engine.max_prompt_batch_tokens == limits.prompt_step_tokens == 4 * 64
    assert engine.mixes_steps is limits.mixes_steps is False
    assert all(texts)
    assert await text()
    back = {"threads": 1, "flash_attention": False, "batch_tokens": 32}
    await asyncio.wrap_future(generation.loop.when_idle(lambda: engine.retune(**back)))
    assert await text() == before
    await generation.close()
