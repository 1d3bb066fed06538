"""Opens the inference service: its models, its tuner and its servicer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from pagantic_common.rpc.access.registration import Registration
from pagantic_common.rpc.access.tls.service_callers import guard_of
from pagantic_common.telemetry.clock import SystemClock
from services.inference.app.models import Models
from services.inference.app.watchdog import wait_until_broken
from services.inference.servicer import SCOPES, SERVICE_NAME, InferenceServicer
from services.inference.settings import InferenceSettings
from services.inference.wiring.constraint_workers import open_workers
from services.inference.wiring.load_metrics import report_load
from services.inference.wiring.model_loading import ModelLoader
from services.inference.wiring.tuning import open_tuner

MIB = 1024 * 1024


@asynccontextmanager
async def open_app(settings: InferenceSettings, default: Path) -> AsyncIterator[Sequence[Registration]]:
    """Load the default model and yield the registrations of the server; close everything at the end."""
    async with open_workers(settings) as workers:
        loader = ModelLoader(settings, default, workers)
        models = Models(
            loader.specs,
            loader.load,
            memory_limit_bytes=settings.memory_limit_mib * MIB,
            min_residence_s=settings.min_residence_s,
        )
        report_load(models)
        async with open_tuner(settings, default, models, loader) as tuner:
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
