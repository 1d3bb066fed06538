"""Prepares the model of MODEL_PATH: converts its weights, checks the engine at the first load, and opens its tuner."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from pagantic_common.domain.errors import PreconditionFailed
from pagantic_common.telemetry.clock import SystemClock
from pagantic_common.telemetry.logging import get_logger
from services.inference.adapters.conversion import eight_bit_file
from services.inference.adapters.llama.weights import uses_amx
from services.inference.adapters.tuning import ChildProber, Machine, TuningFile, check_engine, tuning_folder
from services.inference.app.generation import Generation
from services.inference.app.models import Models
from services.inference.app.tuning import Tuner
from services.inference.core import embedding, pairs
from services.inference.core.tuning import NAMES, Tuning, untuned
from services.inference.settings import AUTO, InferenceSettings
from services.inference.wiring.model_loading import ModelLoader

log = get_logger(__name__)


def own_weights(settings: InferenceSettings, own: Path) -> Path:
    """Return the file to load for a model that generates text.

    Raises PreconditionFailed (CONFIG_NO_ENGINE) if WEIGHTS is q8_0 and the conversion fails. If WEIGHTS is auto and the
    conversion fails, the given file is returned.
    """
    is_bundled = not settings.model_path
    is_automatic = settings.weights == AUTO and is_bundled and settings.gpu_layers == 0 and not uses_amx()
    if not is_automatic and settings.weights != "q8_0":
        return own
    try:
        return eight_bit_file(own)
    except PreconditionFailed as error:
        if not is_automatic:
            raise
        log.warning("the bundled model runs with the weights of its file", reason=str(error))
        return own


async def load_default(models: Models, loader: ModelLoader, file: TuningFile, *, is_checked: bool) -> None:
    """Load the first model of `loader`.

    With `is_checked`, a child process checks the engine on this CPU at the same time.
    """
    alias = loader.specs[0].info.name
    size_mb = round(loader.specs[0].memory_bytes / 1e6)
    log.info("loading model", model=file.machine.model_path.name, size_mb=size_mb)
    started_s = time.monotonic()
    if is_checked:
        await _load_and_check(models, loader, file)
    else:
        await _load(models, alias)
    log.info("model loaded", seconds=round(time.monotonic() - started_s, 1))


async def _load_and_check(models: Models, loader: ModelLoader, file: TuningFile) -> None:
    alias = loader.specs[0].info.name
    checking = asyncio.create_task(check_engine(file.machine))
    try:
        await _load(models, alias)
        if not checking.done():
            log.info("trying the engine on this CPU")
        if not await checking:
            await models.close()  # the model is reloaded before it decodes anything
            file.use_extra_bufts = False
            loader.disable_extra_bufts()
            await _load(models, alias)
        await asyncio.to_thread(file.save, None)
    finally:
        checking.cancel()
        await asyncio.wait([checking])


async def _load(models: Models, alias: str) -> None:
    async with models.use(alias):
        pass


@asynccontextmanager
async def open_tuner(
    settings: InferenceSettings, own: Path, models: Models, loader: ModelLoader
) -> AsyncIterator[Tuner]:
    """Load the model of MODEL_PATH with its stored tuning, and yield its tuner.

    The tuner measures while the service runs.
    """
    file = TuningFile(Machine(own, settings.gpu_layers, settings.cache_type), tuning_folder())
    stored = await asyncio.to_thread(file.load)
    measured = None
    if stored is not None:
        file.use_extra_bufts = stored.use_extra_bufts
        measured = stored.tuning
    tuner = _make_tuner(settings, file, measured, models, loader)
    loader.set_options(tuner.tuning, use_extra_bufts=file.use_extra_bufts)
    try:
        await load_default(models, loader, file, is_checked=settings.self_check and stored is None)
        tuning = asyncio.create_task(_run_tuner(tuner))
        yield tuner
        tuning.cancel()
        await asyncio.wait([tuning])
    finally:
        await models.close()


def _make_tuner(
    settings: InferenceSettings, file: TuningFile, measured: Tuning | None, models: Models, loader: ModelLoader
) -> Tuner:
    """Return the tuner for the model of MODEL_PATH. `measured` is the tuning of an earlier start."""
    configured_tuning = settings.given_tuning()
    prober: ChildProber | None = ChildProber(file.machine, lambda: file.use_extra_bufts)
    if note := _why_not_measured(settings, loader.specs[0].info.capabilities, configured_tuning):
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
        given=configured_tuning,
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
    """Measure until cancelled. An error ends only the measurement, not the service."""
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
