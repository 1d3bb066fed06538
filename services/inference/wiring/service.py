"""Opens the inference service: its models, its tuner and its servicer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.rpc.access.registration import Registration
from pagantic_common.rpc.access.tls.service_callers import guard_of
from pagantic_common.telemetry.clock import SystemClock
from services.inference.app.models import Models, ModelSpec, ServedModel
from services.inference.app.watchdog import wait_until_broken
from services.inference.servicer import SCOPES, SERVICE_NAME, InferenceServicer
from services.inference.settings import InferenceSettings
from services.inference.wiring.constraint_workers import open_workers
from services.inference.wiring.elsewhere import Elsewhere
from services.inference.wiring.load_metrics import report_load
from services.inference.wiring.model_loading import ModelLoader
from services.inference.wiring.tuning import open_tuner

MIB = 1024 * 1024


@asynccontextmanager
async def open_app(settings: InferenceSettings, own: Path | None) -> AsyncIterator[Sequence[Registration]]:
    """Load the service's own model, if it has one, and yield the registrations; close everything at the end."""
    async with open_workers(settings) as workers:
        loader = ModelLoader(settings, own, workers)
        models = make_models(settings, loader)
        report_load(models)
        async with open_tuner(settings, own, models, loader) as tuner:
            yield [
                Registration(
                    SERVICE_NAME,
                    InferenceServicer(models, tuner, max_priority=settings.max_priority).add_to,
                    SCOPES,
                    guard_of("inference", settings),
                    wait_until_broken=lambda: wait_until_broken(
                        models, step_timeout_s=settings.step_timeout_s, clock=SystemClock()
                    ),
                )
            ]


def make_models(settings: InferenceSettings, loader: ModelLoader) -> Models:
    """Return all models, none of which is loaded; raises InvalidRequest for a default model that is not there."""
    elsewhere = Elsewhere(settings, [spec.info for spec in loader.specs])
    specs = [*loader.specs, *elsewhere.specs, *loader.bundled]
    if settings.default_model:
        default = [spec for spec in specs if spec.info.name == settings.default_model]
        if not default:
            known = ", ".join(repr(spec.info.name) for spec in specs)
            raise InvalidRequest(f"DEFAULT_MODEL is {settings.default_model!r}: the models are {known}")
        specs = [*default, *(spec for spec in specs if spec not in default)]

    async def load(spec: ModelSpec) -> ServedModel:
        if elsewhere.has(spec.info.name):
            return elsewhere.connect(spec.info, models.use)
        return await loader.load(spec)

    models = Models(
        specs,
        load,
        memory_limit_bytes=settings.memory_limit_mib * MIB,
        min_residence_s=settings.min_residence_s,
    )
    return models
