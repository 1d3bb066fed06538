"""Opens the inference service: its models, its tuner and its servicer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from pagantic_common.rpc.access.gate import Guard
from pagantic_common.rpc.access.registration import Registration
from pagantic_common.rpc.access.tls.service_callers import guard_of
from pagantic_common.telemetry.clock import SystemClock
from services.inference.app.models import Models
from services.inference.app.watchdog import wait_until_broken
from services.inference.servicer import SCOPES, SERVICE_NAME, InferenceServicer
from services.inference.settings import InferenceSettings
from services.inference.wiring.all_models import make_models
from services.inference.wiring.constraint_workers import open_workers
from services.inference.wiring.load_metrics import report_load
from services.inference.wiring.model_loading import ModelLoader
from services.inference.wiring.tuning import open_tuner
from services.inference.wiring.untuned import open_untuned


@asynccontextmanager
async def open_app(settings: InferenceSettings, own: Path | None) -> AsyncIterator[Sequence[Registration]]:
    """Load the service's own model, if it has one, and yield the registrations; close everything at the end."""
    async with open_workers(settings) as workers:
        loader = ModelLoader(settings, own, workers)
        models = make_models(settings, loader)
        report_load(models)
        tuning = open_untuned(settings, models, loader)
        if own is not None:
            tuning = open_tuner(settings, own, models, loader)
        async with tuning as tuner:
            guard = guard_of("inference", settings)
            registrations = [
                Registration(
                    SERVICE_NAME,
                    InferenceServicer(models, tuner, max_priority=settings.max_priority).add_to,
                    SCOPES,
                    guard,
                    wait_until_broken=lambda: wait_until_broken(
                        models, step_timeout_s=settings.step_timeout_s, clock=SystemClock()
                    ),
                )
            ]
            if settings.vllm_protocol:
                registrations.append(_vllm_registration(settings, models, guard))
            yield registrations


def _vllm_registration(settings: InferenceSettings, models: Models, guard: Guard) -> Registration:
    """Return the registration of vLLM's protocol; its messages are imported only where it is served."""
    from services.inference.vllm import servicer as vllm  # noqa: PLC0415
    from services.inference.vllm.tokenizer_bundle import bundle_tokenizer  # noqa: PLC0415

    bundle = b""
    if settings.vllm_tokenizer_folder:
        bundle = bundle_tokenizer(Path(settings.vllm_tokenizer_folder))
    servicer = vllm.VllmEngineServicer(models, clock=SystemClock(), tokenizer_bundle=bundle)
    return Registration(vllm.SERVICE_NAME, servicer.add_to, vllm.SCOPES, guard)
