"""Puts together what prepares the requests of a model that generates text: its template, and its image encoder."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from pagantic_common.domain.messages import IMAGES, ModelInfo
from pagantic_common.telemetry.clock import SystemClock
from services.inference.adapters.llama.engine import LlamaCppEngine
from services.inference.adapters.prompts.jinja_chat_template import JinjaChatTemplate
from services.inference.adapters.prompts.mtmd_encoder import MtmdEncoder
from services.inference.adapters.prompts.shared_prompt_folder import read_shared_prompts
from services.inference.app.preparing.images import ImagePreparation
from services.inference.app.preparing.preparation import Preparation
from services.inference.app.preparing.prepared_request import RequestPreparer
from services.inference.settings import InferenceSettings
from services.inference.wiring.workers import AllWorkers
from services.inference.wiring.workloads.seeds import new_seed


async def make_preparer(engine: LlamaCppEngine, settings: InferenceSettings) -> RequestPreparer:
    """Return what turns requests into work for a loaded model."""
    shared_prompts = await asyncio.to_thread(read_shared_prompts, settings.shared_prompt_folder)
    template = JinjaChatTemplate(engine.chat_template, bos_token=engine.bos_text, eos_token=engine.eos_text)
    return await asyncio.to_thread(
        RequestPreparer,
        engine,
        template,
        may_draft=settings.drafting,
        new_seed=new_seed,
        shared_prompts=shared_prompts,
    )


async def make_preparation(
    engine: LlamaCppEngine, info: ModelInfo, settings: InferenceSettings, workers: AllWorkers, *, threads: int
) -> Preparation:
    """Return the threads that prepare requests, with the model's image encoder if it takes images.

    Raises PreconditionFailed (CONFIG_NO_ENGINE) for a projector that cannot be used.
    """
    images = None
    if IMAGES in info.capabilities:
        # Half of the threads: the steps of other requests go on meanwhile.
        threads = max(1, (threads or os.cpu_count() or 1) // 2)
        encoder = await asyncio.to_thread(
            MtmdEncoder,
            Path(settings.projector_path),
            engine.weights,
            threads=threads,
            uses_gpu=settings.gpu_layers != 0,
        )
        images = ImagePreparation(encoder, workers.decode_image, monotonic_s=SystemClock().monotonic_s)
    return Preparation(engine, window_tokens=engine.model.context_window, images=images)
