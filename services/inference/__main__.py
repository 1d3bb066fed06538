"""Starts the inference service."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from pagantic_common.rpc.server import Registration, run_service
from pagantic_common.settings import load_settings
from services.inference.settings import InferenceSettings

SWITCH_INTERVAL_S = 0.001  # the engine's thread must not wait 5 ms for the interpreter between two steps


def _open_app(settings: InferenceSettings) -> AbstractAsyncContextManager[Sequence[Registration]]:
    # llama.cpp's OpenMP reads how long to spin when the library loads, so it is loaded after that is set.
    from services.inference.wiring import open_app  # noqa: PLC0415

    return open_app(settings)


def main() -> None:
    """Entry point of `python -m services.inference`."""
    settings = load_settings(InferenceSettings)
    os.environ["GOMP_SPINCOUNT"] = str(settings.spin_count)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    run_service("inference", settings, lambda: _open_app(settings))


if __name__ == "__main__":
    main()
