"""Opens the inference service: stores, workers, models, the tuner, and the server's registrations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from pagantic_common.models.folder import serving
from pagantic_common.rpc.access.registration import Registration
from pagantic_common.telemetry.logging import get_logger
from services.inference.adapters.machine import CpuClock, core_count, spare_cores
from services.inference.adapters.openmp import SpinSwitch
from services.inference.adapters.prompts.prefix_folder import PrefixFolder
from services.inference.app.prefix_storage import BlockStorage, ModelStorage
from services.inference.core.tuning import SpinRule
from services.inference.settings import AUTO, MIB, InferenceSettings
from services.inference.wiring.model_loading import ModelLoader
from services.inference.wiring.own_model import open_tuner, own_weights
from services.inference.wiring.remote_models import make_models
from services.inference.wiring.server import make_registrations, open_untuned, report_load, report_storage
from services.inference.wiring.text_generation import open_workers

READING_S = 0.5

log = get_logger(__name__)


@asynccontextmanager
async def open_app(settings: InferenceSettings, own: Path | None) -> AsyncIterator[Sequence[Registration]]:
    """Load the model of MODEL_PATH from the file `own`, and yield the registrations. Closes everything at the end."""
    async with open_storage(settings) as storage_of, open_workers(settings) as workers:
        loader = ModelLoader(settings, own, workers, storage_of, partial(own_weights, settings))
        models = make_models(settings, loader)
        report_load(models)
        tuning = open_untuned(settings, models, loader)
        if loader.own_file is not None:
            tuning = open_tuner(settings, loader.own_file, models, loader)
        with serving(loader.given_files):
            async with tuning as tuner:
                yield make_registrations(settings, models, tuner)


@asynccontextmanager
async def open_storage(settings: InferenceSettings) -> AsyncIterator[Callable[[str], ModelStorage] | None]:
    """Open PREFIX_FOLDER and yield a function that returns the storage for a model's digest.

    Yields None if there is no folder. Raises PreconditionFailed if the folder cannot be used.
    """
    if not settings.prefix_folder:
        yield None
        return
    folder = Path(settings.prefix_folder)
    storage = BlockStorage(await asyncio.to_thread(PrefixFolder, folder, settings.prefix_folder_mib * MIB))
    report_storage(storage.counts)
    try:
        yield partial(ModelStorage, storage)
    finally:
        await asyncio.to_thread(storage.close)


@asynccontextmanager
async def open_spinning(settings: InferenceSettings) -> AsyncIterator[None]:
    """Let idle engine threads spin long while other processes leave the cores free. SPIN_COUNT overrides this."""
    if settings.spin_count != AUTO:
        yield
        return
    try:
        switch = SpinSwitch()
    except OSError as error:
        log.info("the engine's threads spin as OpenMP has it", because=str(error))
        yield
        return
    threads = core_count() if settings.threads == AUTO else settings.threads
    following = asyncio.create_task(_follow(switch, spare_cores(threads)))
    try:
        yield
    finally:
        following.cancel()
        await asyncio.wait([following])
        switch.set_long(True)  # ends the sleeping team of threads


async def _follow(switch: SpinSwitch, spare: int) -> None:
    """Switch the spin count according to the load until cancelled. An error ends the switching, not the service."""
    rule = SpinRule()
    try:
        switch.set_long(False)
        while True:
            clock = CpuClock.read()
            await asyncio.sleep(READING_S)
            switch.set_long(rule.is_long(clock.others_cores() - spare))
    except Exception:
        log.exception("the spinning of threads no longer follows the load")
