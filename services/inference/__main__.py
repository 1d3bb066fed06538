"""Starts the inference service."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from pagantic_common.rpc.server import Registration, run_service
from pagantic_common.settings import load_settings
from services.inference.adapters.default_model import find_default_model
from services.inference.adapters.tuning import Machine, cache_folder, check, tune
from services.inference.core.tuning import NAMES, Tuning, untuned, with_given
from services.inference.settings import AUTO, InferenceSettings

SWITCH_INTERVAL_S = 0.001  # the engine's thread must not wait 5 ms for the interpreter between two steps


@asynccontextmanager
async def open_app(settings: InferenceSettings) -> AsyncIterator[Sequence[Registration]]:
    """Tune the engine, load the default model and give what the server needs."""
    model = Path(settings.model_path) if settings.model_path else find_default_model()
    tuning = await asyncio.to_thread(_find_tuning, settings, model)
    # llama.cpp's OpenMP reads how long to spin when the library loads, so it is loaded after that is set.
    os.environ["GOMP_SPINCOUNT"] = str(tuning.spin_count)
    from services.inference import wiring  # noqa: PLC0415

    async with wiring.open_app(settings, model, tuning) as registrations:
        yield registrations


def _find_tuning(settings: InferenceSettings, model: Path) -> Tuning:
    """Return how to run the model: as set, and where that says auto as measured, now or before on this machine."""
    machine = Machine(model, settings.gpu_layers)
    if settings.tuning and model.is_file():
        tuning = tune(machine, cache_folder() / "tuning")
    else:
        tuning = untuned(machine.cores, "not measured: PAGANTIC_INFERENCE_TUNING is false")
        if settings.self_check and model.is_file():
            tuning = replace(tuning, use_extra_bufts=check(machine))
    given = {name: value for name in NAMES if (value := getattr(settings, name)) != AUTO}
    return with_given(tuning, given)


def main() -> None:
    """Entry point of `python -m services.inference`."""
    settings = load_settings(InferenceSettings)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    run_service("inference", settings, partial(open_app, settings))


if __name__ == "__main__":
    main()
