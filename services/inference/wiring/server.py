"""Builds the parts of the server that need no engine: registrations, metrics, and a remote-only service.

No import of this module loads llama.cpp.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Protocol

from pagantic_common.domain.errors import ErrorCode, PreconditionFailed
from pagantic_common.rpc.access.registration import Registration
from pagantic_common.rpc.access.tls.service_callers import guard_of
from pagantic_common.telemetry import names
from pagantic_common.telemetry.clock import SystemClock
from pagantic_common.telemetry.logging import get_logger
from pagantic_common.telemetry.metrics import add_counter, add_counters, add_gauge, add_info
from services.inference.adapters.machine import core_count
from services.inference.app.models import Models, ModelSpec, ServedModel
from services.inference.app.prefix_storage import StorageCounts
from services.inference.app.replica_watch import ReplicaWatch, wait_until_broken
from services.inference.app.tuning import Tuner
from services.inference.core.cached_blocks import BLOCK_TOKENS
from services.inference.core.tuning import Tuning, untuned
from services.inference.servicer import SCOPES, SERVICE_NAME, InferenceServicer
from services.inference.settings import InferenceSettings
from services.inference.wiring.remote_models import make_models

_GAUGES = (
    (names.INFERENCE_QUEUED_REQUESTS, "Requests that wait for their first step", "queued_requests"),
    (names.INFERENCE_QUEUE_CAPACITY, "Most requests that may wait", "queue_capacity"),
    (names.INFERENCE_PENDING_PROMPT_TOKENS, "Prompt tokens that are not computed yet", "pending_prompt_tokens"),
    (names.INFERENCE_RUNNING_SEQUENCES, "Sequences that are being decoded", "running_sequences"),
    (names.INFERENCE_SEQUENCE_CAPACITY, "Most sequences that may be decoded at once", "sequence_capacity"),
    (names.INFERENCE_PARKED_BYTES, "Host memory of prompts that left the KV cache", "parked_bytes"),
    (names.INFERENCE_KV_USED_TOKENS, "KV cache cells in use", "kv_used_tokens"),
    (names.INFERENCE_KV_CAPACITY_TOKENS, "KV cache cells in all", "kv_capacity_tokens"),
    (names.INFERENCE_KV_USED_RATIO, "Share of the KV cache's cells in use, from 0 to 1", "kv_used_ratio"),
)
_COUNTERS = (
    (names.INFERENCE_OUTPUT_TOKENS, "Tokens given out since the start", "output_tokens_total"),
    (names.INFERENCE_COMPUTED_TOKENS, "Tokens computed since the start", "computed_tokens_total"),
    (names.INFERENCE_REFUSED_REQUESTS, "Requests that the queue had no place for", "refused_total"),
    (names.INFERENCE_PREEMPTIONS, "Sequences that lost their cells to others", "preemptions_total"),
)
_DRAFT_COUNTERS = (
    (
        names.INFERENCE_DRAFTED_TOKENS,
        "Tokens guessed, by who guessed",
        "looked_up_tokens_total",
        "guessed_tokens_total",
    ),
    (
        names.INFERENCE_ACCEPTED_TOKENS,
        "Guessed tokens that were right, by who guessed",
        "looked_up_accepted_total",
        "guessed_accepted_total",
    ),
)
_STORAGE_COUNTERS = (
    (names.INFERENCE_PREFIX_READ_TOKENS, "Tokens of prompts whose cells came from the folder", "read_tokens"),
    (names.INFERENCE_PREFIX_WRITTEN_TOKENS, "Tokens whose cells were written to the folder", "written_tokens"),
    (names.INFERENCE_PREFIX_DROPPED_BLOCKS, "Blocks of cells that could not be written", "dropped_blocks"),
)
log = get_logger(__name__)


def report_load(models: Models) -> None:
    """Add the gauges and counters, which read the load at each collection."""
    for name, description, attribute in _GAUGES:
        add_gauge(name, description, partial(_read_load, models, attribute))
    for name, description, attribute in _COUNTERS:
        add_counter(name, description, partial(_read_load, models, attribute))
    for name, description, looked_up, guessed in _DRAFT_COUNTERS:
        sources = {"prompt_lookup": looked_up, "draft_model": guessed}
        add_counters(name, description, "source", partial(_read_loads, models, sources))
    add_gauge(names.INFERENCE_STEP_AGE, "Age of the oldest step that is being computed", partial(_step_age_s, models))
    add_info(
        names.INFERENCE_CACHE_CONFIG, "Size of the KV cache in the blocks of its events", partial(_cache_config, models)
    )


def report_storage(counts: StorageCounts) -> None:
    """Add the counters of the prefix store."""
    for name, description, attribute in _STORAGE_COUNTERS:
        add_counter(name, description, partial(getattr, counts, attribute))


def _read_load(models: Models, attribute: str) -> float:
    return float(getattr(models.load(), attribute))


def _read_loads(models: Models, attributes: Mapping[str, str]) -> dict[str, float]:
    load = models.load()
    return {label: float(getattr(load, attribute)) for label, attribute in attributes.items()}


def _step_age_s(models: Models) -> float:
    now_s = time.monotonic()
    return max((served.workload.stuck_for_s(now_s) for served in models.loaded), default=0.0)


def _cache_config(models: Models) -> dict[str, str]:
    """Return the labels of vLLM's metric of the same meaning, which endpoint pickers read."""
    blocks = models.load().kv_capacity_tokens // BLOCK_TOKENS
    return {"block_size": str(BLOCK_TOKENS), "num_gpu_blocks": str(blocks)}


def make_registrations(settings: InferenceSettings, models: Models, tuner: Tuner) -> list[Registration]:
    """Return the service's own registration and, if VLLM_PROTOCOL is set, the registration of vLLM's protocol.

    Raises InvalidRequest if the tokenizer cannot be served.
    """
    guard = guard_of("inference", settings)
    watch = ReplicaWatch(models, SystemClock())
    registrations = [
        Registration(
            SERVICE_NAME,
            InferenceServicer(models, tuner, watch).add_to,
            SCOPES,
            guard,
            begin_drain=watch.stop,
            wait_until_broken=lambda: wait_until_broken(
                models, step_timeout_s=settings.step_timeout_s, clock=SystemClock()
            ),
        )
    ]
    if settings.vllm_protocol:
        # The messages of vLLM's protocol are imported only if the protocol is served.
        from services.inference.vllm.servicer import make_registration  # noqa: PLC0415

        vllm = make_registration(
            models,
            watch,
            guard,
            tokenizer_folder=settings.vllm_tokenizer_folder,
            has_events=settings.vllm_kv_events,
        )
        registrations.append(vllm)
    return registrations


class LoadsByTuning(Protocol):
    """A loader of models that accepts a tuning."""

    def set_options(self, tuning: Tuning, *, use_extra_bufts: bool) -> None:
        """Set the tuning for models that are loaded later."""


@asynccontextmanager
async def open_untuned(settings: InferenceSettings, models: Models, loader: LoadsByTuning) -> AsyncIterator[Tuner]:
    """Yield a tuner that measures nothing, for a service without MODEL_PATH.

    The settings and the safe defaults apply.
    """

    async def apply(_tuning: Tuning) -> None:
        """Do nothing, because a tuner without a prober never calls this."""

    tuner = Tuner(
        untuned(core_count(), is_on_gpu=bool(settings.gpu_layers)),
        given=settings.given_tuning(),
        prober=None,
        store=None,
        in_use=models.in_use,
        apply=apply,
        clock=SystemClock(),
        note="PAGANTIC_INFERENCE_MODEL_PATH is none",
    )
    loader.set_options(tuner.tuning, use_extra_bufts=False)
    try:
        yield tuner
    finally:
        await models.close()


class NoLocalModels:
    """The empty set of locally decoded models."""

    specs: Sequence[ModelSpec] = ()
    bundled: Sequence[ModelSpec] = ()

    def set_options(self, tuning: Tuning, *, use_extra_bufts: bool) -> None:
        """Do nothing, because no model is loaded here."""

    async def load(self, spec: ModelSpec) -> ServedModel:  # noqa: ARG002
        """Raise PreconditionFailed (CONFIG_NO_ENGINE), because no model can be decoded here."""
        raise _missing_engine()


@asynccontextmanager
async def open_without_engine(settings: InferenceSettings) -> AsyncIterator[Sequence[Registration]]:
    """Yield the registrations for a service that has only the models of REMOTES and ROUTES.

    Raises PreconditionFailed (CONFIG_NO_ENGINE) if the settings name a model to decode here, or name no remote model.
    """
    if settings.has_own_model or settings.models or not settings.remotes:
        raise _missing_engine()
    log.info("other engines alone answer: llama-cpp-python is not installed")
    local = NoLocalModels()
    models = make_models(settings, local)
    report_load(models)
    async with open_untuned(settings, models, local) as tuner:
        yield make_registrations(settings, models, tuner)


def _missing_engine() -> PreconditionFailed:
    return PreconditionFailed(
        "the package llama-cpp-python, which runs models, is not installed: run `make setup` in a checkout; "
        "elsewhere `pip install 'pagantic[server,engine]'`, which compiles it",
        code=ErrorCode.CONFIG_NO_ENGINE,
    )
