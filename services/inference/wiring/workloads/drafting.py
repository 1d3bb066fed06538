"""Loads a draft model beside the model that it drafts for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pagantic_common.domain.errors import ErrorCode, InvalidRequest, PreconditionFailed
from pagantic_common.domain.messages import ModelInfo
from pagantic_common.telemetry.clock import SystemClock
from pagantic_common.telemetry.logging import get_logger
from services.inference.adapters.llama.cache import EngineOptions
from services.inference.adapters.llama.engine import LlamaCppEngine
from services.inference.adapters.llama.tokenizer import LlamaTokenizer, common_tokens
from services.inference.adapters.openmp import release_threads
from services.inference.app.stepping.draft_engine import CacheLimits, DraftEngine
from services.inference.settings import InferenceSettings
from services.inference.wiring.workloads.kept_cells import cache_limits

log = get_logger(__name__)


def load_draft_engine(engine: LlamaCppEngine, settings: InferenceSettings, options: EngineOptions) -> DraftEngine:
    """Load the draft model of an engine, and measure its steps.

    Raises PreconditionFailed (CONFIG_NO_ENGINE) if it cannot be loaded, or has other tokens than the engine's model.
    """
    path = Path(settings.draft_model_path)
    # A draft model decodes steps of the model's, which are small.
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
    release_threads()  # The engine has a thread of its own.
    log.info("draft model loaded", model=path.name, shared_tokens=shared)
    return drafts


def _limits(engine: LlamaCppEngine, draft: LlamaCppEngine, settings: InferenceSettings) -> CacheLimits:
    """Return the limits of the draft model's cache; with these cells, both models may park the same tokens."""
    limits = cache_limits(settings, engine.kv_capacity_tokens)
    parked_bytes = 0
    if draft.cell_format:
        share = draft.kv_bytes_per_token / (engine.kv_bytes_per_token + draft.kv_bytes_per_token)
        parked_bytes = int(limits.max_parked_bytes * share)
    return replace(limits, max_parked_bytes=parked_bytes)
