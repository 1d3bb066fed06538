"""Entry point of the inference service."""

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

SWITCH_INTERVAL_S = 0.001  # by default, the engine's thread may wait 5 ms for the interpreter between steps


@asynccontextmanager
async def open_app(settings: InferenceSettings) -> AsyncIterator[Sequence[Registration]]:
    """Load the model at MODEL_PATH, if any, and yield the server's registrations.

    Raises PreconditionFailed (CONFIG_NO_ENGINE) if the settings need the engine but the engine's package is not
    installed.
    """
    if find_spec("llama_cpp") is None:
        from services.inference.wiring.server import open_without_engine  # noqa: PLC0415 - loads no llama.cpp

        async with open_without_engine(settings) as registrations:
            yield registrations
        return
    # OpenMP reads the spin count when llama.cpp's library loads, so the wiring is imported after it is set.
    set_spinning(settings.spin_count)
    from services.inference.wiring import service  # noqa: PLC0415

    own = None
    if settings.has_own_model:
        own = Path(settings.model_path) if settings.model_path else find_default_model()
    async with service.open_spinning(settings), service.open_app(settings, own) as registrations:
        yield registrations


def main() -> None:
    """Run the inference service: the entry point of `python -m services.inference`."""
    settings = load_settings(InferenceSettings)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    run_service("inference", settings, partial(open_app, settings))


if __name__ == "__main__":
    main()
