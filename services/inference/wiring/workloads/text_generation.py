"""Loads a model that generates text, with its engine loop and its constraints."""

from __future__ import annotations

import asyncio
from pathlib import Path

from pagantic_common.domain.messages import ModelInfo
from pagantic_common.telemetry.clock import SystemClock
from services.inference.adapters.llama.cache import EngineOptions
from services.inference.adapters.llama.engine import LlamaCppEngine
from services.inference.adapters.llguidance_constraints import LlguidanceCompiler
from services.inference.app.generation import Generation
from services.inference.app.storing.submission import ModelStorage, Submission
from services.inference.settings import InferenceSettings
from services.inference.wiring.workers import AllWorkers
from services.inference.wiring.workloads.drafting import load_draft_engine
from services.inference.wiring.workloads.engine_thread import open_loop
from services.inference.wiring.workloads.preparing import make_preparation, make_preparer

MIB = 1024 * 1024


async def load_generation(
    path: Path,
    info: ModelInfo,
    settings: InferenceSettings,
    options: EngineOptions,
    workers: AllWorkers,
    *,
    storage: ModelStorage | None,
    has_drafts: bool,
) -> Generation:
    """Load a model, with its draft model if it has one, and start its engine loop."""
    engine = await asyncio.to_thread(LlamaCppEngine, path, info, options)
    drafts = None
    try:
        if has_drafts:
            drafts = await asyncio.to_thread(load_draft_engine, engine, settings, options)
        requests = await make_preparer(engine, settings)
        preparation = await make_preparation(engine, info, settings, workers, threads=options.threads)
    except BaseException:
        if drafts is not None:
            drafts.close()
        engine.close()
        raise
    clock = SystemClock()
    loop = open_loop(engine, drafts, settings, storage)
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
