"""Reports the load of the models, and what the store of prefixes does, as metrics."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial

from pagantic_common.telemetry import names
from pagantic_common.telemetry.metrics import add_counter, add_counters, add_gauge, add_info
from services.inference.app.models import Models
from services.inference.app.storing.block_storage import StorageCounts
from services.inference.core.cached_blocks import BLOCK_TOKENS

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


def report_load(models: Models) -> None:
    """Add the gauges and counters, which read the load when they are collected."""
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
    """Add the counters of the store of prefixes."""
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
    """Return the labels that endpoint pickers know from vLLM."""
    blocks = models.load().kv_capacity_tokens // BLOCK_TOKENS
    return {"block_size": str(BLOCK_TOKENS), "num_gpu_blocks": str(blocks)}
