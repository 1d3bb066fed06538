"""Starts the thread that decodes with an engine, and with its draft model if it has one."""

from __future__ import annotations

import asyncio

from pagantic_common.telemetry.clock import SystemClock
from services.inference.adapters.llama.engine import LlamaCppEngine
from services.inference.app.engine_loop import EngineLoop
from services.inference.app.stepping.draft_engine import DraftEngine
from services.inference.app.storing.submission import ModelStorage
from services.inference.core.scheduling.batching import Limits
from services.inference.settings import InferenceSettings
from services.inference.wiring.workloads.kept_cells import cache_limits

MEMO_ROWS = 64  # rows of logits kept for repeated prompts and first tokens


def open_loop(
    engine: LlamaCppEngine, drafts: DraftEngine | None, settings: InferenceSettings, storage: ModelStorage | None
) -> EngineLoop:
    """Start the loop of an engine; its events go to the running event loop."""
    limits = cache_limits(settings, engine.kv_capacity_tokens)
    parked_bytes = limits.max_parked_bytes
    if drafts is not None:
        parked_bytes -= drafts.max_parked_bytes
    return EngineLoop(
        engine,
        limits=Limits(
            engine.max_batch_tokens,
            settings.max_running,
            settings.queue_capacity,
            MEMO_ROWS,
            settings.tenant_weights,
            engine.max_prompt_batch_tokens,
            engine.mixes_steps,
        ),
        max_idle_tokens=limits.max_idle_tokens,
        max_parked_bytes=parked_bytes,
        clock=SystemClock(),
        post=asyncio.get_running_loop().call_soon_threadsafe,
        stream_interval_s=settings.stream_interval_ms / 1000,
        put=storage.blocks.put if storage is not None else None,
        model_digest=storage.model_digest if storage is not None else "",
        drafts=drafts,
    )
