"""Loads the model of MODEL_PATH, and tries the engine on a CPU that is new to it."""

from __future__ import annotations

import asyncio
import time

from pagantic_common.telemetry.logging import get_logger
from services.inference.adapters.tuning import TuningFile, check_engine
from services.inference.app.models import Models
from services.inference.wiring.model_loading import ModelLoader

log = get_logger(__name__)


async def load_default(models: Models, loader: ModelLoader, file: TuningFile, *, is_checked: bool) -> None:
    """Load the loader's first model; if `is_checked`, a child process tries the engine on this CPU meanwhile."""
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
            await models.close()  # before it decodes anything
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
