"""Loads the model of MODEL_PATH with its kept tuning, measures it, and applies the result to the loaded models."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from pagantic_common.telemetry.clock import SystemClock
from pagantic_common.telemetry.logging import get_logger
from services.inference.adapters.tuning import ChildProber, Machine, TuningFile, tuning_folder
from services.inference.app.generation import Generation
from services.inference.app.models import Models
from services.inference.app.tuning import Tuner
from services.inference.core import embedding, pairs
from services.inference.core.tuning.choosing import NAMES, Tuning, untuned
from services.inference.settings import InferenceSettings
from services.inference.wiring.model_loading import ModelLoader
from services.inference.wiring.own_model.loading import load_default

log = get_logger(__name__)


@asynccontextmanager
async def open_tuner(
    settings: InferenceSettings, own: Path, models: Models, loader: ModelLoader
) -> AsyncIterator[Tuner]:
    """Load the service's own model with the kept tuning, and measure while the service runs."""
    file = TuningFile(Machine(own, settings.gpu_layers, settings.cache_type), tuning_folder())
    kept = await asyncio.to_thread(file.load)
    measured = None
    if kept is not None:
        file.use_extra_bufts = kept.use_extra_bufts
        measured = kept.tuning
    tuner = _make_tuner(settings, file, measured, models, loader)
    loader.set_options(tuner.tuning, use_extra_bufts=file.use_extra_bufts)
    try:
        await load_default(models, loader, file, is_checked=settings.self_check and kept is None)
        tuning = asyncio.create_task(_run_tuner(tuner))
        yield tuner
        tuning.cancel()
        await asyncio.wait([tuning])
    finally:
        await models.close()


def _make_tuner(
    settings: InferenceSettings, file: TuningFile, measured: Tuning | None, models: Models, loader: ModelLoader
) -> Tuner:
    """Return the tuner of the own model; `measured` is the tuning of an earlier start."""
    given = settings.given_tuning()
    prober: ChildProber | None = ChildProber(file.machine, lambda: file.use_extra_bufts)
    if note := _why_not_measured(settings, loader.specs[0].info.capabilities, given):
        prober = measured = None

    def generations() -> list[Generation]:
        return [served.workload for served in models.loaded if isinstance(served.workload, Generation)]

    async def apply(tuning: Tuning) -> None:
        loader.set_options(tuning, use_extra_bufts=file.use_extra_bufts)
        for generation in generations():
            await generation.retune(tuning)

    def load() -> tuple[float, ...]:
        return tuple(map(sum, zip(*(generation.step_seconds for generation in generations()), strict=True)))

    return Tuner(
        untuned(file.machine.cores, is_on_gpu=bool(settings.gpu_layers)),
        given=given,
        prober=prober,
        store=file,
        in_use=models.in_use,
        apply=apply,
        clock=SystemClock(),
        load=load,
        measured=measured,
        note=note,
    )


async def _run_tuner(tuner: Tuner) -> None:
    """Measure until cancelled; an error ends the measuring, not the service."""
    try:
        await tuner.run()
    except Exception:
        log.exception("measuring has ended")


def _why_not_measured(settings: InferenceSettings, capabilities: Sequence[str], given: Mapping[str, object]) -> str:
    if not settings.tuning:
        return "PAGANTIC_INFERENCE_TUNING is false"
    if {embedding.CAPABILITY, pairs.CAPABILITY} & set(capabilities):
        return "the model decodes no text"
    if settings.gpu_layers:
        return "layers are on a GPU, which may have no room to measure beside"
    if set(NAMES) - {"spin_count"} <= set(given):
        return "every setting is set"
    return ""
