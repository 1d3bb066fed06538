"""Opens the inference service: its models, its tuner and its servicers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from pagantic_common.rpc.access.registration import Registration
from services.inference.adapters.prompts.prefix_folder import PrefixFolder
from services.inference.app.storing.block_storage import BlockStorage
from services.inference.app.storing.submission import ModelStorage
from services.inference.settings import InferenceSettings
from services.inference.wiring.all_models import make_models
from services.inference.wiring.load_metrics import report_load, report_storage
from services.inference.wiring.model_loading import ModelLoader
from services.inference.wiring.registrations import make_registrations
from services.inference.wiring.tuning import open_tuner
from services.inference.wiring.untuned import open_untuned
from services.inference.wiring.workers import open_workers

MIB = 1024 * 1024


@asynccontextmanager
async def open_app(settings: InferenceSettings, own: Path | None) -> AsyncIterator[Sequence[Registration]]:
    """Load the service's own model, if it has one, and yield the registrations; close everything at the end."""
    async with _open_storage(settings) as storage_of, open_workers(settings) as workers:
        loader = ModelLoader(settings, own, workers, storage_of)
        models = make_models(settings, loader)
        report_load(models)
        tuning = open_untuned(settings, models, loader)
        if own is not None:
            tuning = open_tuner(settings, own, models, loader)
        async with tuning as tuner:
            yield make_registrations(settings, models, tuner)


@asynccontextmanager
async def _open_storage(settings: InferenceSettings) -> AsyncIterator[Callable[[str], ModelStorage] | None]:
    """Open the folder of prefixes, if there is one; raises PreconditionFailed for one that cannot be used."""
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
