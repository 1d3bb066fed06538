"""Starts the inference service: the one place that names its concrete classes."""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from pagantic_common.domain.errors import ErrorCode, PreconditionFailed
from pagantic_common.rpc.server import Registration, run_service
from pagantic_common.settings import load_settings
from pagantic_common.telemetry.clock import SystemClock
from services.inference.settings import InferenceSettings


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
    # llama.cpp's OpenMP reads its wait policy when the library loads, so these imports come after it is set.
    from services.inference.adapters.jinja_chat_template import JinjaChatTemplate  # noqa: PLC0415
    from services.inference.adapters.llama_cpp_engine import EngineOptions, LlamaCppEngine  # noqa: PLC0415
    from services.inference.adapters.llguidance_constraints import LlguidanceCompiler  # noqa: PLC0415
    from services.inference.adapters.self_check import choose_options  # noqa: PLC0415
    from services.inference.app.decode_job import EngineThread, new_seed  # noqa: PLC0415
    from services.inference.app.generation import Generation  # noqa: PLC0415
    from services.inference.servicer import SERVICE_NAME, InferenceServicer  # noqa: PLC0415

    path = _model_path(settings)
    options = EngineOptions(
        context_tokens=settings.context_tokens,
        batch_tokens=settings.batch_tokens,
        threads=settings.threads,
        gpu_layers=settings.gpu_layers,
        flash_attention=settings.flash_attention,
    )
    if settings.self_check:
        options = await choose_options(path, options)
    engine = LlamaCppEngine(path, name=settings.model_name or path.stem, options=options)
    generation = Generation(
        engine=engine,
        template=JinjaChatTemplate(engine.chat_template, bos_token=engine.bos_text, eos_token=engine.eos_text),
        constraints=LlguidanceCompiler(engine.vocab),
        thread=EngineThread(engine, SystemClock(), lambda: f"call_{uuid.uuid4().hex[:16]}"),
        queue_capacity=settings.queue_capacity,
        max_candidates=settings.max_candidates,
        new_seed=new_seed,
    )
    try:
        yield [Registration(SERVICE_NAME, InferenceServicer(generation).add_to)]
    finally:
        await generation.close()
        engine.close()


def main() -> None:
    """Entry point of `python -m services.inference`."""
    settings = load_settings(InferenceSettings)
    os.environ["OMP_WAIT_POLICY"] = settings.omp_wait_policy
    run_service("inference", settings, lambda: _open_app(settings))


if __name__ == "__main__":
    main()
