"""What an engine keeps of ended requests, for prompts that repeat their beginning."""

from __future__ import annotations

from services.inference.app.stepping.draft_engine import CacheLimits
from services.inference.settings import AUTO, InferenceSettings

_MIB = 1024 * 1024
_CPU_PARKED_MIB = 512
_GPU_IDLE_TOKENS = 4096


def cache_limits(settings: InferenceSettings, capacity_tokens: int) -> CacheLimits:
    """Return the limits of an engine with so many cells, and of its draft model together with it.

    A CPU parks cells, which then slow no step. A GPU gives out cells that do not lie together one by one, which takes
    longer than computing them again, so they stay in the cache, of which half is free for requests.
    """
    is_on_gpu = bool(settings.gpu_layers)
    idle_tokens, parked_mib = 0, _CPU_PARKED_MIB
    if is_on_gpu:
        idle_tokens = min(_GPU_IDLE_TOKENS, capacity_tokens // 2)
        if not settings.prefix_folder:  # What is read from the folder is parked first.
            parked_mib = 0
    if settings.max_idle_tokens != AUTO:
        idle_tokens = settings.max_idle_tokens
    if settings.parked_mib != AUTO:
        parked_mib = settings.parked_mib
    return CacheLimits(idle_tokens, parked_mib * _MIB)
