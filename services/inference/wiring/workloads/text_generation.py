"""Loads a model that generates text, with its engine loop and its constraints."""

from __future__ import annotations

import asyncio
from pathlib import Path

from pagantic_common.domain.messages import ModelInfo
from pagantic_common.telemetry.clock import SystemClock
from services.inference.adapters.llama_cpp_engine import EngineOptions, LlamaCppEngine
from services.inference.adapters.llguidance_constraints import LlguidanceCompiler
from services.inference.app.engine_loop import EngineLoop
from services.inference.app.generation import Generation
from services.inference.app.storing.submission import ModelStorage, Submission
from services.inference.core.scheduling.batching import Limits
from services.inference.settings import InferenceSettings
from services.inference.wiring.workers import AllWorkers
from services.inference.wiring.workloads.preparing import make_preparation, make_preparer

MEMO_ROWS = 64  # rows of logits kept for repeated prompts and first tokens
MIB = 1024 * 1024


async def load_generation(
    path: Path,
    info: ModelInfo,
    settings: InferenceSettings,
    options: EngineOptions,
    workers: AllWorkers,
    *,
    storage: ModelStorage | None,
) -> Generation:
    """Load a model and start its engine loop."""
    engine = await asyncio.to_thread(LlamaCppEngine, path, info, options)
    try:
        requests = await make_preparer(engine, settings)
        preparation = await make_preparation(engine, info, settings, options, workers)
    except BaseException:
        engine.close()
        raise
    clock = SystemClock()
    loop = EngineLoop(
        engine,
        limits=Limits(
            engine.max_batch_tokens,
            settings.max_running,
            settings.queue_capacity,
            MEMO_ROWS,
            settings.tenant_weights,
        ),
        max_idle_tokens=settings.max_idle_tokens,
        max_parked_bytes=settings.parked_mib * MIB,
        clock=clock,
        post=asyncio.get_running_loop().call_soon_threadsafe,
        stream_interval_s=settings.stream_interval_ms / 1000,
        put=storage.blocks.put if storage is not None else None,
        model_digest=storage.model_digest if storage is not None else "",
    )
    return Generation(
        submission=Submission(loop, storage),
        preparation=preparation,
        requests=requests,
        constraints=LlguidanceCompiler(
            engine.vocab,
            workers.constraints,
            cache_bytes=settings.constraint_cache_mib * MIB,
            monotonic_s=clock.monotonic_s,
        ),
        clock=clock,
        max_candidates=settings.max_candidates,
    )
