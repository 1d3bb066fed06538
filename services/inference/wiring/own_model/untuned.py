"""The tuning of a service without a model of its own, which measures nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from pagantic_common.telemetry.clock import SystemClock
from services.inference.adapters.machine import core_count
from services.inference.app.models import Models
from services.inference.app.tuning import Tuner
from services.inference.core.tuning.choosing import Tuning, untuned
from services.inference.settings import InferenceSettings


class LoadsByTuning(Protocol):
    """Loads models by a tuning."""

    def set_options(self, tuning: Tuning, *, use_extra_bufts: bool) -> None:
        """Load models with this tuning from now on."""


@asynccontextmanager
async def open_untuned(settings: InferenceSettings, models: Models, loader: LoadsByTuning) -> AsyncIterator[Tuner]:
    """Give a tuner that measures nothing: models of MODELS run by the settings, or by safe defaults."""
    tuner = Tuner(
        untuned(core_count(), is_on_gpu=bool(settings.gpu_layers)),
        given=settings.given_tuning(),
        prober=None,
        store=None,
        in_use=models.in_use,
        apply=_apply_nothing,
        clock=SystemClock(),
        note="PAGANTIC_INFERENCE_MODEL_PATH is none",
    )
    loader.set_options(tuner.tuning, use_extra_bufts=False)
    try:
        yield tuner
    finally:
        await models.close()


async def _apply_nothing(_tuning: Tuning) -> None:
    """Apply nothing, which is never called: nothing is measured."""
