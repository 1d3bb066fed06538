"""Starts the inference service."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from pagantic_common.rpc.access.registration import Registration
from pagantic_common.rpc.process.program import run_service
from pagantic_common.settings import load_settings
from services.inference.adapters.default_model import find_default_model
from services.inference.adapters.openmp import set_spinning
from services.inference.settings import InferenceSettings

SWITCH_INTERVAL_S = 0.001  # the engine's thread must not wait 5 ms for the interpreter between two steps


@asynccontextmanager
async def open_app(settings: InferenceSettings) -> AsyncIterator[Sequence[Registration]]:
    """Load the service's own model, if it has one, and yield the registrations of the server.

    Raises PreconditionFailed (CONFIG_NO_ENGINE) where the package of the engine is needed and not installed.
    """
    if find_spec("llama_cpp") is None:
        from services.inference.wiring.own_model import without_engine  # noqa: PLC0415 - only where it is needed

        async with without_engine.open_app(settings) as registrations:
            yield registrations
        return
    # llama.cpp's OpenMP reads how long to spin when the library loads, so the wiring is imported afterwards.
    set_spinning(settings.spin_count)
    from services.inference.wiring import service, spinning  # noqa: PLC0415

    async with spinning.open_spinning(settings), service.open_app(settings, _own_model(settings)) as registrations:
        yield registrations


def _own_model(settings: InferenceSettings) -> Path | None:
    if not settings.has_own_model:
        return None
    if settings.model_path:
        return Path(settings.model_path)
    return find_default_model()


def main() -> None:
    """Entry point of `python -m services.inference`."""
    settings = load_settings(InferenceSettings)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    run_service("inference", settings, partial(open_app, settings))


if __name__ == "__main__":
    main()
