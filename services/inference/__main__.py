"""Starts the inference service: the one place that names its concrete classes."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from pagantic_common.domain.errors import ErrorCode, PreconditionFailed
from pagantic_common.rpc.server import Registration, run_service
from pagantic_common.settings import load_settings
from pagantic_common.telemetry.clock import SystemClock
from services.inference.settings import InferenceSettings

IDLE_SEQUENCES = 96  # ids for finished sequences whose tokens may be shared
SWITCH_INTERVAL_S = 0.001  # the engine's thread must not wait 5 ms for the interpreter between two steps


def _model_path(settings: InferenceSettings) -> Path:
    from services.inference.adapters.default_model import find_default_model  # noqa: PLC0415

    if not settings.model_path:
        return find_default_model()
    path = Path(settings.model_path)
    if not path.is_file():
        raise PreconditionFailed(
            f"PAGANTIC_INFERENCE_MODEL_PATH names {settings.model_path!r}, which is not a file",
            code=ErrorCode.CONFIG_NO_ENGINE,
        )
    return path


@asynccontextmanager
async def _open_app(settings: InferenceSettings) -> AsyncIterator[Sequence[Registration]]:
    # llama.cpp's OpenMP reads how long to spin when the library loads, so these imports come after it is set.
    from services.inference.adapters.jinja_chat_template import JinjaChatTemplate  # noqa: PLC0415
    from services.inference.adapters.llama_cpp_engine import MAX_SEQUENCES, EngineOptions, LlamaCppEngine  # noqa: PLC0415
    from services.inference.adapters.llguidance_constraints import LlguidanceCompiler  # noqa: PLC0415
    from services.inference.adapters.self_check import choose_options  # noqa: PLC0415
    from services.inference.app.engine_loop import EngineLoop  # noqa: PLC0415
    from services.inference.app.generation import Generation  # noqa: PLC0415
    from services.inference.core.batching import Limits  # noqa: PLC0415
    from services.inference.servicer import SERVICE_NAME, InferenceServicer  # noqa: PLC0415

    path = _model_path(settings)
    options = EngineOptions(
        context_tokens=settings.context_tokens,
        kv_tokens=settings.kv_tokens or 2 * settings.context_tokens,
        max_sequences=min(MAX_SEQUENCES, settings.max_running + IDLE_SEQUENCES),
        batch_tokens=settings.step_tokens,
        threads=settings.threads,
        gpu_layers=settings.gpu_layers,
        flash_attention=settings.flash_attention,
    )
    if settings.self_check:
        options = await choose_options(path, options)
    engine = LlamaCppEngine(path, name=settings.model_name or path.stem, options=options)
    clock = SystemClock()
    loop = EngineLoop(
        engine,
        limits=Limits(engine.max_batch_tokens, settings.max_running, settings.queue_capacity),
        max_idle_tokens=settings.max_idle_tokens,
        clock=clock,
        post=asyncio.get_running_loop().call_soon_threadsafe,
    )
    generation = Generation(
        loop=loop,
        template=JinjaChatTemplate(engine.chat_template, bos_token=engine.bos_text, eos_token=engine.eos_text),
        constraints=LlguidanceCompiler(engine.vocab),
        clock=clock,
        max_candidates=settings.max_candidates,
        may_draft=settings.drafting,
        new_seed=lambda: int.from_bytes(os.urandom(4), "little"),
    )
    try:
        yield [Registration(SERVICE_NAME, InferenceServicer(generation).add_to)]
    finally:
        await generation.close()
        engine.close()


def main() -> None:
    """Entry point of `python -m services.inference`."""
    settings = load_settings(InferenceSettings)
    os.environ["GOMP_SPINCOUNT"] = str(settings.spin_count)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    run_service("inference", settings, lambda: _open_app(settings))


if __name__ == "__main__":
    main()
