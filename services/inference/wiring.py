"""Names the concrete classes of the inference service; import it after the environment of llama.cpp is set."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from pagantic_common.domain.messages import ModelInfo
from pagantic_common.grammar.engine_text import STACK_BYTES
from pagantic_common.rpc.server import Registration
from pagantic_common.telemetry import names
from pagantic_common.telemetry.clock import SystemClock
from pagantic_common.telemetry.logging import get_logger
from pagantic_common.telemetry.metrics import add_counter, add_gauge
from pagantic_common.workers.process_workers import ProcessWorkers
from pagantic_common.workers.worker_process import WorkerLimits
from services.inference.adapters import constraint_trial
from services.inference.adapters.jinja_chat_template import JinjaChatTemplate
from services.inference.adapters.llama_cpp_embedder import EmbedderOptions, LlamaCppEmbedder
from services.inference.adapters.llama_cpp_engine import MAX_SEQUENCES, EngineOptions, LlamaCppEngine
from services.inference.adapters.llguidance_constraints import LlguidanceCompiler
from services.inference.adapters.model_file import describe_model
from services.inference.adapters.tuning import ChildProber, Machine, TuningFile, cache_folder, check_engine
from services.inference.app.embedding import Embedding
from services.inference.app.engine_loop import EngineLoop
from services.inference.app.generation import Generation
from services.inference.app.models import Models, ModelSpec, ServedModel
from services.inference.app.tuning import Tuner
from services.inference.app.watchdog import wait_until_broken
from services.inference.core.embedding import CAPABILITY
from services.inference.core.scheduling.batching import Limits
from services.inference.core.tuning import NAMES, Tuning, untuned
from services.inference.servicer import SERVICE_NAME, InferenceServicer
from services.inference.settings import AUTO, InferenceSettings

IDLE_SEQUENCES = 96  # ids for finished sequences whose tokens may be shared
MEMO_ROWS = 64  # rows of logits kept for prompts and first tokens that come again
MAX_CONSTRAINT_MIB = 512  # memory of a worker that builds a constraint; the result has a bound of its own
MIB = 1024 * 1024

log = get_logger(__name__)


@dataclass
class _Running:
    """How engines run now; those that are loaded later run so too."""

    options: EngineOptions


@asynccontextmanager
async def open_app(settings: InferenceSettings, default: Path) -> AsyncIterator[Sequence[Registration]]:
    """Load the default model and give what the server needs; everything is closed at the end."""
    threading.stack_size(STACK_BYTES)  # of threads that are started from here on
    limits = WorkerLimits(
        settings.constraint_workers,
        settings.max_constraint_s,
        MAX_CONSTRAINT_MIB,
        settings.queue_capacity + settings.max_running,
        constraint_trial.__name__,
    )
    async with ProcessWorkers(limits) as workers, _open_models(settings, default, workers) as registrations:
        yield registrations


@asynccontextmanager
async def _open_models(
    settings: InferenceSettings, default: Path, workers: ProcessWorkers
) -> AsyncIterator[Sequence[Registration]]:
    paths = {settings.model_name or default.stem: default}
    paths |= {alias: Path(path) for alias, path in settings.models.items()}
    specs = [
        ModelSpec(describe_model(path, alias=alias, context_tokens=settings.context_tokens), path.stat().st_size)
        for alias, path in paths.items()
    ]
    file = TuningFile(Machine(default, settings.gpu_layers), cache_folder() / "tuning")
    kept = await asyncio.to_thread(file.load)
    if kept is not None:
        file.use_extra_bufts = kept.use_extra_bufts
    running = _Running(EngineOptions())
    models = Models(
        specs,
        lambda spec: _load_model(spec, paths[spec.info.name], settings, running.options, workers),
        memory_limit_bytes=settings.memory_limit_mib * MIB,
        min_residence_s=settings.min_residence_s,
    )
    tuner = _make_tuner(settings, file, kept.tuning if kept is not None else None, models, running)
    running.options = _engine_options(settings, tuner.tuning, use_extra_bufts=file.use_extra_bufts)
    _report_load(models)
    try:
        checks = settings.self_check and kept is None
        await _load_default(specs[0], models, file, running, checks=checks)
        tuning = asyncio.create_task(_keep_tuning(tuner))
        yield [
            Registration(
                SERVICE_NAME,
                InferenceServicer(models, tuner, max_priority=settings.max_priority).add_to,
                wait_until_broken=lambda: wait_until_broken(
                    models, step_timeout_s=settings.step_timeout_s, clock=SystemClock()
                ),
            )
        ]
        tuning.cancel()
        await asyncio.wait([tuning])
    finally:
        await models.close()


async def _load_default(spec: ModelSpec, models: Models, file: TuningFile, running: _Running, *, checks: bool) -> None:
    """Load the default model; meanwhile a child process tries whether the build runs on this CPU, where that is new."""
    machine = file.machine
    log.info("loading model", model=machine.model_path.name, size_mb=round(spec.memory_bytes / 1e6))
    started_s = time.monotonic()
    checking = asyncio.create_task(check_engine(machine)) if checks else None
    try:
        async with models.use(""):
            pass
        if checking is not None and not checking.done():
            log.info("trying the engine on this CPU")
        if checking is not None and not await checking:
            await models.close()  # before anything was decoded with it
            file.use_extra_bufts = False
            running.options = replace(running.options, use_extra_bufts=False)
            async with models.use(""):
                pass
        if checking is not None:
            await asyncio.to_thread(file.save, None)
    finally:
        if checking is not None:
            checking.cancel()
            await asyncio.wait([checking])
    log.info("model loaded", seconds=round(time.monotonic() - started_s, 1))


async def _keep_tuning(tuner: Tuner) -> None:
    try:
        await tuner.run()
    except Exception:
        log.exception("measuring has ended")


def _why_not_measured(settings: InferenceSettings, model: ModelInfo, given: Mapping[str, object]) -> str:
    if not settings.tuning:
        return "PAGANTIC_INFERENCE_TUNING is false"
    if CAPABILITY in model.capabilities:
        return "the model decodes no text"
    if settings.gpu_layers:
        return "layers are on a GPU, which may have no room to measure beside"
    return "every setting is set" if set(NAMES) - {"spin_count"} <= set(given) else ""


def _make_tuner(
    settings: InferenceSettings, file: TuningFile, measured: Tuning | None, models: Models, running: _Running
) -> Tuner:
    machine = file.machine
    given = {name: value for name in NAMES if (value := getattr(settings, name)) != AUTO}
    note = _why_not_measured(settings, models.infos[0], given)

    async def apply(tuning: Tuning) -> None:
        running.options = _engine_options(settings, tuning, use_extra_bufts=file.use_extra_bufts)
        changes = {
            "threads": tuning.threads,
            "flash_attention": tuning.flash_attention,
            "batch_tokens": tuning.step_tokens,
        }
        for served in models.loaded:
            if served.generation is not None and isinstance(served.tokenizer, LlamaCppEngine):
                change = partial(served.tokenizer.retune, **changes)
                await asyncio.wrap_future(served.generation.loop.when_idle(change))

    return Tuner(
        untuned(machine.cores, is_on_gpu=bool(settings.gpu_layers)),
        given=given,
        prober=None if note else ChildProber(machine, lambda: file.use_extra_bufts),
        store=file,
        in_use=models.in_use,
        apply=apply,
        clock=SystemClock(),
        measured=None if note else measured,
        note=note,
    )


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


def _engine_options(settings: InferenceSettings, tuning: Tuning, *, use_extra_bufts: bool) -> EngineOptions:
    return EngineOptions(
        context_tokens=settings.context_tokens,
        kv_tokens=settings.kv_tokens or 2 * settings.context_tokens,
        max_sequences=min(MAX_SEQUENCES, settings.max_running + IDLE_SEQUENCES),
        batch_tokens=tuning.step_tokens,
        threads=tuning.threads,
        gpu_layers=settings.gpu_layers,
        flash_attention=tuning.flash_attention,
        use_extra_bufts=use_extra_bufts,
    )


async def _load_model(
    spec: ModelSpec, path: Path, settings: InferenceSettings, options: EngineOptions, workers: ProcessWorkers
) -> ServedModel:
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
    constraints = LlguidanceCompiler(
        engine.vocab, workers, cache_bytes=settings.constraint_cache_mib * MIB, clock=clock
    )
    generation = Generation(
        loop=loop,
        template=JinjaChatTemplate(engine.chat_template, bos_token=engine.bos_text, eos_token=engine.eos_text),
        constraints=constraints,
        clock=clock,
        max_candidates=settings.max_candidates,
        may_draft=settings.drafting,
        new_seed=lambda: int.from_bytes(os.urandom(4), "little"),
    )

    async def close() -> None:
        await generation.close()
        await asyncio.to_thread(constraints.close)
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
