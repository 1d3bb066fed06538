"""A model with a sliding window under the engine: a part of a copy of its cells would give other answers."""

import numpy as np
import pytest

from pagantic_common.domain.messages import ModelInfo
from pagantic_common.telemetry.clock import SystemClock
from services.inference.adapters.llama_cpp_engine import EngineOptions, LlamaCppEngine
from services.inference.app.engine_loop import EngineLoop
from services.inference.core.scheduling.batch import Slice
from services.inference.core.scheduling.batching import Limits
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


def test_the_memory_of_a_cell_follows_from_the_width_of_the_heads(engine):
    assert engine.kv_bytes_per_token == LAYERS * 2 * HEAD_DIMENSIONS * 2
    row_after(engine, 0, 0, WINDOW)
    assert 1 <= engine.copy_out(0, 0, WINDOW).size / (WINDOW * engine.kv_bytes_per_token) < 1.3
