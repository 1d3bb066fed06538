"""Opens the inference service: its models, its tuner and its servicers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from pagantic_common.models.folder import serving
from pagantic_common.rpc.access.registration import Registration
from services.inference.settings import InferenceSettings
from services.inference.wiring.all_models import make_models
from services.inference.wiring.load_metrics import report_load
from services.inference.wiring.model_loading import ModelLoader
from services.inference.wiring.own_model.tuning import open_tuner
from services.inference.wiring.own_model.untuned import open_untuned
from services.inference.wiring.own_model.weights import own_weights
from services.inference.wiring.prefix_storage import open_storage
from services.inference.wiring.registrations import make_registrations
from services.inference.wiring.workers import open_workers


@asynccontextmanager
async def open_app(settings: InferenceSettings, own: Path | None) -> AsyncIterator[Sequence[Registration]]:
    """Load the service's own model, if it has one, and yield the registrations; close everything at the end."""
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
