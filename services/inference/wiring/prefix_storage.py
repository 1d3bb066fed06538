"""Opens the folder of prefixes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from services.inference.adapters.prompts.prefix_folder import PrefixFolder
from services.inference.app.storing.block_storage import BlockStorage
from services.inference.app.storing.submission import ModelStorage
from services.inference.settings import InferenceSettings
from services.inference.wiring.load_metrics import report_storage

MIB = 1024 * 1024


@asynccontextmanager
async def open_storage(settings: InferenceSettings) -> AsyncIterator[Callable[[str], ModelStorage] | None]:
    """Yield what makes the store of a model, or None without a folder.

    Raises PreconditionFailed for a folder that cannot be used.
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
