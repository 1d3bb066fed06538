"""Loads a text model with its worker processes, caches, draft model, engine loop, and request preparation."""

from __future__ import annotations

import asyncio
import base64
import os
import secrets
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from pagantic_common.domain.errors import ErrorCode, InvalidRequest, PreconditionFailed
from pagantic_common.domain.images import Image
from pagantic_common.domain.messages import IMAGES, ModelInfo
from pagantic_common.grammar.engine_text import STACK_BYTES
from pagantic_common.telemetry.clock import SystemClock
from pagantic_common.telemetry.logging import get_logger
from pagantic_common.workers.process_workers import ProcessWorkers
from pagantic_common.workers.worker_process import WorkerLimits
from services.inference.adapters import constraint_trial
from services.inference.adapters.llama.cache import EngineOptions
from services.inference.adapters.llama.engine import LlamaCppEngine
from services.inference.adapters.llama.tokenizer import LlamaTokenizer, common_tokens
from services.inference.adapters.llguidance_constraints import LlguidanceCompiler, Workers
from services.inference.adapters.openmp import release_threads
from services.inference.adapters.prompts import image_decoding
from services.inference.adapters.prompts.jinja_chat_template import JinjaChatTemplate
from services.inference.adapters.prompts.mtmd_encoder import MtmdEncoder
from services.inference.adapters.prompts.shared_prompt_folder import read_shared_prompts
from services.inference.app.draft_engine import CacheLimits, DraftEngine
from services.inference.app.engine_loop import EngineLoop
from services.inference.app.generation import Generation
from services.inference.app.prefix_storage import ModelStorage, Submission
from services.inference.app.preparation import ImagePreparation, Preparation
from services.inference.app.prepared_request import RequestPreparer
from services.inference.core.decoding.images import DecodedImage
from services.inference.core.scheduling.batching import Limits
from services.inference.settings import AUTO, MIB, InferenceSettings

# These limits apply to the trial of a constraint. The built constraint has a separate limit.
CONSTRAINT_WORKERS = 1
MAX_CONSTRAINT_S = 1.5
MAX_CONSTRAINT_MIB = 512
STREAM_INTERVAL_S = 0.05  # minimum time between two messages of a stream, each of which costs as much as a short step
# This is enough for an image with the maximum number of pixels, and for a copy of the image in another color space.
MAX_IMAGE_MIB = 768
MAX_IMAGE_S = 5.0
_CPU_PARKED_MIB = 512
_GPU_IDLE_TOKENS = 4096
log = get_logger(__name__)
MEMO_ROWS = 64  # number of rows of logits kept for repeated prompts and first tokens


@dataclass(frozen=True, slots=True)
class AllWorkers:
    """The workers for constraints and for images. `images` is None if no model accepts images."""

    constraints: Workers
    images: Workers | None = None

    async def decode_image(self, image: Image) -> DecodedImage:
        """Decode an image. Raises InvalidRequest if that is impossible or exceeds the limits of a worker."""
        assert self.images is not None  # noqa: S101 - only a model that takes images calls this
        try:
            width, height, pixels = await self.images.run(image_decoding.decode_image, image.media_type, image.data)
        except InvalidRequest as error:
            if error.code is ErrorCode.CONSTRAINT_TOO_COMPLEX:  # workers use this code for every kind of excessive work
                raise InvalidRequest(f"an image cannot be decoded: {error}") from None
            raise
        return DecodedImage(width, height, base64.b64decode(pixels))


@asynccontextmanager
async def open_workers(settings: InferenceSettings) -> AsyncIterator[AllWorkers]:
    """Start the workers. Threads that start later have a stack large enough to build a constraint."""
    threading.stack_size(STACK_BYTES)
    waiting = settings.queue_capacity + settings.max_running
    limits = WorkerLimits(
        CONSTRAINT_WORKERS,
        MAX_CONSTRAINT_S,
        MAX_CONSTRAINT_MIB,
        waiting,
        constraint_trial.__name__,
    )
    async with ProcessWorkers(limits) as constraints:
        if not settings.projector_path:
            yield AllWorkers(constraints)
            return
        async with open_image_workers(waiting) as images:
            yield AllWorkers(constraints, images)


def open_image_workers(waiting: int) -> ProcessWorkers:
    """Return a process that decodes images, with a queue of `waiting` images.

    The context manager of the returned object starts the process.
    """
    module = image_decoding.__name__
    return ProcessWorkers(WorkerLimits(1, MAX_IMAGE_S, MAX_IMAGE_MIB, waiting, module, advice="send a smaller image"))


def cache_limits(settings: InferenceSettings, capacity_tokens: int) -> CacheLimits:
    """Return the total limits of an engine with `capacity_tokens` cells and of its draft model.

    On a CPU, the cells of ended requests are parked, because cells in the cache slow every step. A GPU copies scattered
    cells one by one, which takes longer than recomputing them. On a GPU, these cells therefore stay in the cache, in at
    most half of it.
    """
    is_on_gpu = bool(settings.gpu_layers)
    idle_tokens, parked_mib = 0, _CPU_PARKED_MIB
    if is_on_gpu:
        idle_tokens = min(_GPU_IDLE_TOKENS, capacity_tokens // 2)
        if not settings.prefix_folder:  # cells from the folder are parked before use
            parked_mib = 0
    if settings.max_idle_tokens != AUTO:
        idle_tokens = settings.max_idle_tokens
    if settings.parked_mib != AUTO:
        parked_mib = settings.parked_mib
    return CacheLimits(idle_tokens, parked_mib * MIB)


def load_draft_engine(engine: LlamaCppEngine, settings: InferenceSettings, options: EngineOptions) -> DraftEngine:
    """Load the draft model of an engine, and measure the draft model's steps.

    Raises PreconditionFailed (CONFIG_NO_ENGINE) if the draft model cannot be loaded, or if its tokens differ from the
    tokens of the engine's model.
    """
    path = Path(settings.draft_model_path)
    # A draft model processes only the small steps of the main model, so it needs no larger steps for prompts.
    draft = LlamaCppEngine(path, ModelInfo("draft", options.context_tokens), replace(options, prompt_steps=1))
    try:
        shared = common_tokens(LlamaTokenizer(engine.vocab), LlamaTokenizer(draft.vocab))
    except InvalidRequest as error:
        draft.close()
        raise PreconditionFailed(
            f"DRAFT_MODEL_PATH {str(path)!r} does not fit the model, whose tokens it must have: {error}",
            code=ErrorCode.CONFIG_NO_ENGINE,
        ) from None
    drafts = DraftEngine(draft, vocabulary_size=shared, limits=_limits(engine, draft, settings), clock=SystemClock())
    drafts.measure()
    release_threads()  # the engine will run on another thread, so this thread needs no pool
    log.info("draft model loaded", model=path.name, shared_tokens=shared)
    return drafts


def _limits(engine: LlamaCppEngine, draft: LlamaCppEngine, settings: InferenceSettings) -> CacheLimits:
    """Return the draft model's share of the cache limits, so that both models can park the same tokens."""
    limits = cache_limits(settings, engine.kv_capacity_tokens)
    parked_bytes = 0
    if draft.cell_format:
        share = draft.kv_bytes_per_token / (engine.kv_bytes_per_token + draft.kv_bytes_per_token)
        parked_bytes = int(limits.max_parked_bytes * share)
    return replace(limits, max_parked_bytes=parked_bytes)


def open_loop(
    engine: LlamaCppEngine, drafts: DraftEngine | None, settings: InferenceSettings, storage: ModelStorage | None
) -> EngineLoop:
    """Start the loop of an engine with its draft model. Events are posted to the running event loop."""
    limits = cache_limits(settings, engine.kv_capacity_tokens)
    parked_bytes = limits.max_parked_bytes
    if drafts is not None:
        parked_bytes -= drafts.max_parked_bytes
    return EngineLoop(
        engine,
        limits=Limits(
            engine.max_batch_tokens,
            settings.max_running,
            settings.queue_capacity,
            MEMO_ROWS,
            settings.tenant_weights,
            engine.max_prompt_batch_tokens,
            engine.mixes_steps,
        ),
        max_idle_tokens=limits.max_idle_tokens,
        max_parked_bytes=parked_bytes,
        clock=SystemClock(),
        post=asyncio.get_running_loop().call_soon_threadsafe,
        stream_interval_s=STREAM_INTERVAL_S,
        put=storage.blocks.put if storage is not None else None,
        model_digest=storage.model_digest if storage is not None else "",
        drafts=drafts,
    )


async def make_preparer(engine: LlamaCppEngine, settings: InferenceSettings) -> RequestPreparer:
    """Return the preparer for a loaded model, with the model's template and the shared prompts."""
    shared_prompts = await asyncio.to_thread(read_shared_prompts, settings.shared_prompt_folder)
    template = JinjaChatTemplate(engine.chat_template, bos_token=engine.bos_text, eos_token=engine.eos_text)
    return await asyncio.to_thread(
        RequestPreparer,
        engine,
        template,
        may_draft=settings.drafting,
        new_seed=partial(secrets.randbits, 32),
        shared_prompts=shared_prompts,
    )


async def make_preparation(
    engine: LlamaCppEngine, info: ModelInfo, settings: InferenceSettings, workers: AllWorkers, *, threads: int
) -> Preparation:
    """Return the threads that prepare requests, with the model's image encoder if the model accepts images.

    Raises PreconditionFailed (CONFIG_NO_ENGINE) if the projector cannot be used.
    """
    images = None
    if IMAGES in info.capabilities:
        # Only half of the threads are used, because the steps of other requests continue meanwhile.
        threads = max(1, (threads or os.cpu_count() or 1) // 2)
        encoder = await asyncio.to_thread(
            MtmdEncoder,
            Path(settings.projector_path),
            engine.weights,
            threads=threads,
            uses_gpu=settings.gpu_layers != 0,
        )
        images = ImagePreparation(encoder, workers.decode_image, monotonic_s=SystemClock().monotonic_s)
    return Preparation(engine, window_tokens=engine.model.context_window, images=images)


async def load_generation(
    path: Path,
    info: ModelInfo,
    settings: InferenceSettings,
    options: EngineOptions,
    workers: AllWorkers,
    *,
    storage: ModelStorage | None,
    has_drafts: bool,
) -> Generation:
    """Load a model, including any draft model, and start its engine loop."""
    engine = await asyncio.to_thread(LlamaCppEngine, path, info, options)
    drafts = None
    try:
        if has_drafts:
            drafts = await asyncio.to_thread(load_draft_engine, engine, settings, options)
        requests = await make_preparer(engine, settings)
        preparation = await make_preparation(engine, info, settings, workers, threads=options.threads)
    except BaseException:
        if drafts is not None:
            drafts.close()
        engine.close()
        raise
    clock = SystemClock()
    loop = open_loop(engine, drafts, settings, storage)
    return Generation(
        submission=Submission(loop, storage),
        preparation=preparation,
        requests=requests,
        constraints=LlguidanceCompiler(
            engine.vocab,
            workers.constraints,
            cache_bytes=settings.constraint_cache_mib * MIB,
            monotonic_s=clock.monotonic_s,
        ),
        clock=clock,
    )
