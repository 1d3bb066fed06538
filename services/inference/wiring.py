"""Names the concrete classes of the inference service; import it after the environment of llama.cpp is set."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from pagantic_common.grammar.engine_text import STACK_BYTES
from pagantic_common.rpc.server import Registration
from pagantic_common.telemetry import names
from pagantic_common.telemetry.clock import SystemClock
from pagantic_common.telemetry.metrics import add_counter, add_gauge
from services.inference.adapters.jinja_chat_template import JinjaChatTemplate
from services.inference.adapters.llama_cpp_embedder import EmbedderOptions, LlamaCppEmbedder
from services.inference.adapters.llama_cpp_engine import MAX_SEQUENCES, EngineOptions, LlamaCppEngine
from services.inference.adapters.llguidance_constraints import LlguidanceCompiler
from services.inference.adapters.model_file import describe_model
from services.inference.app.embedding import Embedding
from services.inference.app.engine_loop import EngineLoop
from services.inference.app.generation import Generation
from services.inference.app.models import Models, ModelSpec, ServedModel
from services.inference.app.watchdog import wait_until_broken
from services.inference.core.batching import Limits
from services.inference.core.embedding import CAPABILITY
from services.inference.core.tuning import Tuning
from services.inference.servicer import SERVICE_NAME, InferenceServicer
from services.inference.settings import InferenceSettings

IDLE_SEQUENCES = 96  # ids for finished sequences whose tokens may be shared
MEMO_ROWS = 64  # rows of logits kept for prompts and first tokens that come again
MIB = 1024 * 1024


@asynccontextmanager
async def open_app(settings: InferenceSettings, default: Path, tuning: Tuning) -> AsyncIterator[Sequence[Registration]]:
    """Load the default model and give what the server needs; everything is closed at the end."""
    threading.stack_size(STACK_BYTES)  # of threads that are started from here on
    paths = {settings.model_name or default.stem: default}
    paths |= {alias: Path(path) for alias, path in settings.models.items()}
    specs = [
        ModelSpec(describe_model(path, alias=alias, context_tokens=settings.context_tokens), path.stat().st_size)
        for alias, path in paths.items()
    ]
    options = _engine_options(settings, tuning)
    models = Models(
        specs,
        lambda spec: _load_model(spec, paths[spec.info.name], settings, options),
        memory_limit_bytes=settings.memory_limit_mib * MIB,
    )
    _report_load(models)
    try:
        async with models.use(""):  # a service that listens can answer
            pass
        yield [
            Registration(
                SERVICE_NAME,
                InferenceServicer(models, tuning.choices).add_to,
                wait_until_broken=lambda: wait_until_broken(
                    models, step_timeout_s=settings.step_timeout_s, clock=SystemClock()
                ),
            )
        ]
    finally:
        await models.close()


def _read_load(models: Models, attribute: str) -> float:
    return float(getattr(models.load(), attribute))


def _report_load(models: Models) -> None:
    for name, description, attribute in (
        (names.INFERENCE_QUEUED_REQUESTS, "Requests that wait for their first step", "queued_requests"),
        (names.INFERENCE_RUNNING_SEQUENCES, "Sequences that are being decoded", "running_sequences"),
        (names.INFERENCE_KV_USED_TOKENS, "KV cache cells in use", "kv_used_tokens"),
        (names.INFERENCE_KV_CAPACITY_TOKENS, "KV cache cells in all", "kv_capacity_tokens"),
    ):
        add_gauge(name, description, partial(_read_load, models, attribute))
    for name, description, attribute in (
        (names.INFERENCE_OUTPUT_TOKENS, "Tokens given out since the start", "output_tokens_total"),
        (names.INFERENCE_COMPUTED_TOKENS, "Tokens computed since the start", "computed_tokens_total"),
        (names.INFERENCE_PREEMPTIONS, "Sequences that lost their cells to others", "preemptions_total"),
    ):
        add_counter(name, description, partial(_read_load, models, attribute))


def _engine_options(settings: InferenceSettings, tuning: Tuning) -> EngineOptions:
    return EngineOptions(
        context_tokens=settings.context_tokens,
        kv_tokens=settings.kv_tokens or 2 * settings.context_tokens,
        max_sequences=min(MAX_SEQUENCES, settings.max_running + IDLE_SEQUENCES),
        batch_tokens=tuning.step_tokens,
        threads=tuning.threads,
        gpu_layers=settings.gpu_layers,
        flash_attention=tuning.flash_attention,
        use_extra_bufts=tuning.use_extra_bufts,
    )


async def _load_model(spec: ModelSpec, path: Path, settings: InferenceSettings, options: EngineOptions) -> ServedModel:
    if CAPABILITY in spec.info.capabilities:
        return await _load_embedder(spec, path, settings, options)
    engine = await asyncio.to_thread(LlamaCppEngine, path, spec.info, options)
    clock = SystemClock()
    loop = EngineLoop(
        engine,
        limits=Limits(engine.max_batch_tokens, settings.max_running, settings.queue_capacity, MEMO_ROWS),
        max_idle_tokens=settings.max_idle_tokens,
        max_parked_bytes=settings.parked_mib * MIB,
        clock=clock,
        post=asyncio.get_running_loop().call_soon_threadsafe,
        stream_interval_s=settings.stream_interval_ms / 1000,
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

    async def close() -> None:
        await generation.close()
        engine.close()

    return ServedModel(spec.info, engine, close, generation)


async def _load_embedder(
    spec: ModelSpec, path: Path, settings: InferenceSettings, options: EngineOptions
) -> ServedModel:
    embedder = await asyncio.to_thread(LlamaCppEmbedder, path, spec.info, EmbedderOptions.like(options))
    embedding = Embedding(embedder, queue_capacity=settings.queue_capacity, clock=SystemClock())

    async def close() -> None:
        await embedding.close()
        embedder.close()

    return ServedModel(spec.info, embedder, close, embedding=embedding)
