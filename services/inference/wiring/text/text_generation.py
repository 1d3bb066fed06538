"""Loads a model that generates text, with its engine loop and its constraints."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from pagantic_common.domain.messages import ModelInfo
from pagantic_common.telemetry.clock import SystemClock
from services.inference.adapters.llama_cpp_engine import EngineOptions, LlamaCppEngine
from services.inference.adapters.llguidance_constraints import LlguidanceCompiler, Workers
from services.inference.adapters.prompts.jinja_chat_template import JinjaChatTemplate
from services.inference.adapters.prompts.shared_prompt_folder import read_shared_prompts
from services.inference.app.generation import Generation
from services.inference.app.preparing.prepared_request import RequestPreparer
from services.inference.app.storing.submission import ModelStorage, Submission
from services.inference.settings import InferenceSettings
from services.inference.wiring.text.drafting import load_draft_engine
from services.inference.wiring.text.engine_thread import open_loop

MIB = 1024 * 1024


async def load_generation(
    path: Path,
    info: ModelInfo,
    settings: InferenceSettings,
    options: EngineOptions,
    workers: Workers,
    *,
    storage: ModelStorage | None,
    has_drafts: bool,
) -> Generation:
    """Load a model, with its draft model if it has one, and start its engine loop."""
    shared_prompts = await asyncio.to_thread(read_shared_prompts, settings.shared_prompt_folder)
    engine = await asyncio.to_thread(LlamaCppEngine, path, info, options)
    drafts = None
    try:
        if has_drafts:
            drafts = await asyncio.to_thread(load_draft_engine, engine, settings, options)
        template = JinjaChatTemplate(engine.chat_template, bos_token=engine.bos_text, eos_token=engine.eos_text)
        requests = await asyncio.to_thread(
            RequestPreparer,
            engine,
            template,
            may_draft=settings.drafting,
            new_seed=new_seed,
            shared_prompts=shared_prompts,
        )
    except BaseException:
        if drafts is not None:
            drafts.close()
        engine.close()
        raise
    clock = SystemClock()
    loop = open_loop(engine, drafts, settings, storage)
    return Generation(
        submission=Submission(loop, storage),
        requests=requests,
        constraints=LlguidanceCompiler(
            engine.vocab, workers, cache_bytes=settings.constraint_cache_mib * MIB, monotonic_s=clock.monotonic_s
        ),
        clock=clock,
        max_candidates=settings.max_candidates,
    )


def new_seed() -> int:
    """Return a seed for a request that has none."""
    return int.from_bytes(os.urandom(4), "little")
