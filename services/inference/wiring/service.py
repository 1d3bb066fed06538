"""Opens the inference service: its models, what measures them, and its servicer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from pagantic_common.rpc.server import Registration
from pagantic_common.telemetry.clock import SystemClock
from services.inference.adapters.llguidance_constraints import Workers
from services.inference.adapters.tuning import Machine, TuningFile, cache_folder
from services.inference.app.models import Models
from services.inference.app.watchdog import wait_until_broken
from services.inference.servicer import SERVICE_NAME, InferenceServicer
from services.inference.settings import InferenceSettings
from services.inference.wiring.constraint_workers import open_workers
from services.inference.wiring.default_model import load_default
from services.inference.wiring.load_metrics import report_load
from services.inference.wiring.model_loading import ModelLoader
from services.inference.wiring.tuning import make_tuner, run_tuner

MIB = 1024 * 1024


@asynccontextmanager
async def open_app(settings: InferenceSettings, default: Path) -> AsyncIterator[Sequence[Registration]]:
    """Load the default model and yield the registrations of the server; close everything at the end."""
    async with open_workers(settings) as workers, _open_models(settings, default, workers) as registrations:
        yield registrations


@asynccontextmanager
async def _open_models(
    settings: InferenceSettings, default: Path, workers: Workers
) -> AsyncIterator[Sequence[Registration]]:
    file = TuningFile(Machine(default, settings.gpu_layers), cache_folder() / "tuning")
    kept = await asyncio.to_thread(file.load)
    measured = None
    if kept is not None:
        file.use_extra_bufts = kept.use_extra_bufts
        measured = kept.tuning
    loader = ModelLoader(settings, default, workers)
    models = Models(
        loader.specs,
        loader.load,
        memory_limit_bytes=settings.memory_limit_mib * MIB,
        min_residence_s=settings.min_residence_s,
    )
    tuner = make_tuner(settings, file, measured, models, loader)
    loader.set_options(tuner.tuning, use_extra_bufts=file.use_extra_bufts)
    report_load(models)
    try:
        await load_default(models, loader, file, is_checked=settings.self_check and kept is None)
        tuning = asyncio.create_task(run_tuner(tuner))
        yield [
            Registration(
                SERVICE_NAME,
                InferenceServicer(models, tuner, max_priority=settings.max_priority).add_to,
                wait_until_broken=lambda: wait_until_broken(
                    models, step_timeout_s=settings.step_timeout_s, clock=SystemClock()
                ),
            )
        ]
        tuning.cancel()
        await asyncio.wait([tuning])
    finally:
        await models.close()
