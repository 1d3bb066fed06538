"""Prompts that fill the context window, of which the KV cache holds few: its size, its types, and who waits."""

import asyncio

import pytest

from pagantic_common.domain.errors import ErrorCode, PreconditionFailed
from pagantic_common.domain.messages import ModelInfo
from pagantic_common.workers.thread_workers import ThreadWorkers
from services.inference.adapters import machine
from services.inference.adapters.llama import cache
from services.inference.adapters.llama.cache import EngineOptions
from services.inference.adapters.llama.engine import LlamaCppEngine
from services.inference.core.generation import InferenceRequest, Sampling
from services.inference.core.tuning import untuned
from services.inference.settings import InferenceSettings
from services.inference.wiring.model_loading import ModelLoader
from services.inference.wiring.text_generation import AllWorkers
from tests.support.tiny_gemma import write_tiny_gemma

TRAINED = 512
WINDOW = 256
OUTPUT = 16
PROMPTS = ["".join(chr(33 + (index * step) % 89) for index in range(WINDOW - OUTPUT)) for step in range(1, 9)]


@pytest.fixture
def file(tmp_path):
    return write_tiny_gemma(tmp_path / "model.gguf", {"tokenizer.chat_template": "{{ messages[0].content }}"})


async def load(path, *, tuning=None, **settings):
    given = InferenceSettings(port=0, embedding_model="none", context_tokens=WINDOW, **settings)
    loader = ModelLoader(given, path, AllWorkers(ThreadWorkers()))
    loader.set_options(tuning or untuned(1), use_extra_bufts=False)
    return (await loader.load(loader.specs[0])).workload


async def answer(workload, prompt):
    request = InferenceRequest(prompt=prompt, sampling=Sampling(temperature=0), max_tokens=OUTPUT, seed=1)
    return "".join([getattr(event, "content", "") async for event in workload.infer(request)])


async def test_eight_prompts_of_a_whole_window_wait_for_cells_and_are_answered_as_alone(file):
    workload = await load(file, kv_tokens=2 * WINDOW)
    most = 0

    async def watch():
        nonlocal most
        while True:
            most = max(most, workload.load().kv_used_tokens)
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    together = await asyncio.gather(*(answer(workload, prompt) for prompt in PROMPTS))
    watching.cancel()
    assert WINDOW - OUTPUT <= most <= 2 * WINDOW == workload.load().kv_capacity_tokens
    assert together == [await answer(workload, prompt) for prompt in PROMPTS]
    await workload.close()


@pytest.mark.parametrize(("asked", "cells"), [(0, 2 * TRAINED), (8, TRAINED), (3 * TRAINED, 3 * TRAINED)])
def test_the_cells_follow_from_the_window_that_the_model_has(file, asked, cells):
    engine = LlamaCppEngine(file, ModelInfo("tiny", 4096), EngineOptions(context_tokens=4096, kv_tokens=asked))
    assert (engine.model.context_window, engine.kv_capacity_tokens) == (TRAINED, cells)
    engine.close()


def test_a_cache_that_the_memory_cannot_hold_is_refused_before_it_is_made(file, monkeypatch):
    monkeypatch.setattr(cache, "free_memory_bytes", lambda: 2**20)
    with pytest.raises(PreconditionFailed, match=r"takes [1-9]\d* MiB, and 1 MiB are free.*KV_TOKENS") as refused:
        LlamaCppEngine(file, ModelInfo("tiny", 512), EngineOptions(kv_tokens=8192))
    assert refused.value.code is ErrorCode.CONFIG_NO_ENGINE


def test_files_that_the_kernel_caches_leave_their_memory_free(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    whole = machine.free_memory_bytes()
    for name, text in (("max", "5000000"), ("current", "4900000")):
        (tmp_path / f"memory.{name}").write_text(text + "\n")
    assert machine.free_memory_bytes() == 100_000 < whole
    (tmp_path / "memory.stat").write_text("anon 900000\nfile 4000000\ninactive_file 3000000\nactive_file 500000\n")
    assert machine.free_memory_bytes() == 3_600_000


async def test_the_cache_type_holds_for_the_model_and_its_draft_model_and_outlives_a_tuning(file):
    workload = await load(file, cache_type="q8_0", draft_model_path=str(file))
    engines = (workload.engine, workload.loop.drafts.engine)
    before = [engine.kv_bytes_per_token for engine in engines]
    assert all("keys q8_0, values f16" in types_of(engine) for engine in engines)
    expected = await answer(workload, PROMPTS[0])
    await workload.retune(untuned(1, is_on_gpu=True))  # This turns flash attention on.
    assert all("keys q8_0, values q8_0" in types_of(engine) for engine in engines)
    assert all(engine.kv_bytes_per_token < then for engine, then in zip(engines, before, strict=True))
    assert len(await answer(workload, PROMPTS[0])) == len(expected) > 0
    await workload.close()


def types_of(engine):
    engine._has_window = False  # such a model has no format, because nothing of it is parked
    found = engine.cell_format
    engine._has_window = True
    return found
