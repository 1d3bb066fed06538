"""A model with a sliding window under the engine: its sequences share parts and are cut, but none is parked."""

import asyncio

import numpy as np
import pytest

from pagantic_common.domain.messages import ModelInfo
from pagantic_common.telemetry.clock import SystemClock
from pagantic_common.workers.thread_workers import ThreadWorkers
from services.inference.adapters.llama.cache import MAX_SEQUENCES, EngineOptions
from services.inference.adapters.llama.engine import LlamaCppEngine
from services.inference.app.engine_loop import EngineLoop
from services.inference.core.generation import InferenceRequest, Sampling
from services.inference.core.scheduling.batch import Slice
from services.inference.core.scheduling.batching import Limits
from services.inference.core.tuning import untuned
from services.inference.settings import InferenceSettings
from services.inference.wiring.model_loading import ModelLoader
from services.inference.wiring.text_generation import AllWorkers
from tests.support.tiny_gemma import HEAD_DIMENSIONS, LAYERS, TOKENS, WINDOW, write_tiny_gemma

PROMPT = [index * 7 % TOKENS for index in range(8 * WINDOW)]


@pytest.fixture
def engine(tmp_path):
    options = EngineOptions(context_tokens=256, kv_tokens=512, max_sequences=4, batch_tokens=256, threads=1)
    made = LlamaCppEngine(write_tiny_gemma(tmp_path / "gemma.gguf"), ModelInfo("tiny", 256), options)
    yield made
    made.close()


def row_after(engine, sequence_id, start, end):
    return engine.decode([Slice(sequence_id, PROMPT[start:end], start, 1)])[0].copy()


def test_a_part_of_a_copy_gives_other_rows_so_nothing_is_stored_or_parked(engine):
    end = len(PROMPT) - WINDOW // 2
    expected = row_after(engine, 0, 0, end + 1)
    row_after(engine, 0, end + 1, len(PROMPT))
    engine.park(0, 0, len(PROMPT), 1)
    engine.unpark(1, 1, end)
    assert np.abs(row_after(engine, 1, end, end + 1) - expected).max() > 0.1  # once it is small, this may be parked
    assert engine.cell_format == ""
    loop = EngineLoop(
        engine,
        limits=Limits(256, 1, 1),
        max_idle_tokens=0,
        max_parked_bytes=1 << 20,
        clock=SystemClock(),
        post=lambda _callback: None,
        put=lambda *_block: True,
    )
    loop.close()
    assert (loop.root, loop.max_parked_tokens) == (b"", 0)


@pytest.fixture
def passed_by(engine):
    """The engine, whose sequence 0 has a window that is past most of its cells, and whose places were all asked for."""
    row_after(engine, 2, 0, len(PROMPT))
    row_after(engine, 0, 0, len(PROMPT))
    engine.truncate(2, 0)
    for sequence_id in (2, 3):
        row_after(engine, sequence_id, 0, len(PROMPT))
    engine.truncate(2, 0)
    engine.truncate(3, 0)
    return engine


PART = 3 * WINDOW


def test_a_sequence_shares_a_part_of_one_whose_window_is_past_it(passed_by):
    passed_by.copy_prefix(0, 1, PART)
    shared = row_after(passed_by, 1, PART, PART + 1)
    assert np.abs(shared - row_after(passed_by, 2, 0, PART + 1)).max() < 1e-3


def test_a_part_is_shared_after_its_source_has_gone(passed_by):
    passed_by.copy_prefix(0, 1, 5 * WINDOW)
    passed_by.truncate(0, 0)
    for sequence_id in (2, 3):
        row_after(passed_by, sequence_id, 0, len(PROMPT))
    passed_by.truncate(2, 0)
    passed_by.copy_prefix(1, 0, PART)
    shared = row_after(passed_by, 0, PART, PART + 1)
    assert np.abs(shared - row_after(passed_by, 2, 0, PART + 1)).max() < 1e-3


def test_a_sequence_is_cut_to_before_its_window(passed_by):
    passed_by.truncate(0, PART)
    cut = row_after(passed_by, 0, PART, PART + 1)
    assert np.abs(cut - row_after(passed_by, 2, 0, PART + 1)).max() < 1e-3


def test_twice_as_many_sequences_as_llama_cpp_has_are_not_asked_for(tmp_path):
    options = EngineOptions(context_tokens=64, kv_tokens=64, max_sequences=MAX_SEQUENCES, batch_tokens=64, threads=1)
    engine = LlamaCppEngine(write_tiny_gemma(tmp_path / "gemma.gguf"), ModelInfo("tiny", 64), options)
    last = engine.max_sequences - 1
    assert last >= 100
    assert np.isfinite(row_after(engine, last, 0, 32)).all()
    engine.close()


async def answers_of(path, prompts, *, at_once):
    """Return the greedy answers to prompts, which are asked one after another by default, each of an empty cache."""
    settings = InferenceSettings(port=0, embedding_model="none", context_tokens=256, max_idle_tokens=256 * at_once)
    loader = ModelLoader(settings, path, AllWorkers(ThreadWorkers()))
    loader.set_options(untuned(1), use_extra_bufts=False)
    served = await loader.load(loader.specs[0])

    async def ask(prompt):
        request = InferenceRequest(prompt=prompt, sampling=Sampling(temperature=0), max_tokens=24, seed=1)
        events = [event async for event in served.workload.infer(request)]
        return "".join(getattr(event, "content", "") for event in events), events[-1]

    if at_once:
        said = await asyncio.gather(*map(ask, prompts))
    else:
        said = [await ask(prompt) for prompt in prompts]
    await served.workload.close()
    return said


async def test_shared_prefixes_and_drafts_leave_answers_as_they_are(tmp_path):
    path = write_tiny_gemma(tmp_path / "gemma.gguf", {"tokenizer.chat_template": "{{ messages[0].content }}"})
    text = "".join(chr(33 + index * 7 % 90) for index in range(120))
    prompts = [text[:length] + end for end in ("ABABAB", "CDCDCD") for length in (24, 60, 100)]
    together = await answers_of(path, prompts, at_once=True)
    alone = await answers_of(path, prompts, at_once=False)
    assert [content for content, _ in together] == [content for content, _ in alone]
    assert sum(end.usage.cached_prompt_tokens for _, end in together) > 2 * WINDOW


def test_the_memory_of_a_cell_follows_from_the_width_of_the_heads(engine):
    assert engine.kv_bytes_per_token == LAYERS * 2 * HEAD_DIMENSIONS * 2
    row_after(engine, 0, 0, WINDOW)
    assert 1 <= engine.copy_out(0, 0, WINDOW).size / (WINDOW * engine.kv_bytes_per_token) < 1.3
