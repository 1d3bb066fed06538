"""Loads an embedding model or a cross-encoder, with the loop that computes its batches."""

from __future__ import annotations

import asyncio
from pathlib import Path

from pagantic_common.domain.messages import ModelInfo
from pagantic_common.telemetry.clock import SystemClock
from services.inference.adapters.llama.embedder import EmbedderOptions, LlamaCppCrossEncoder, LlamaCppEmbedder
from services.inference.app.pooling.embedder_loop import EmbedderLoop
from services.inference.app.pooling.embedding import Embedding
from services.inference.app.pooling.pair_scoring import PairScoring
from services.inference.core import pairs
from services.inference.ports import TextEmbedder
from services.inference.settings import InferenceSettings


async def load_pooled(
    path: Path, info: ModelInfo, settings: InferenceSettings, options: EmbedderOptions
) -> Embedding | PairScoring:
    """Load a model."""
    if pairs.CAPABILITY in info.capabilities:
        cross_encoder = await asyncio.to_thread(LlamaCppCrossEncoder, path, info, options)
        return PairScoring(_loop_of(cross_encoder, settings), cross_encoder.pair_layout)
    embedder = await asyncio.to_thread(LlamaCppEmbedder, path, info, options)
    return Embedding(_loop_of(embedder, settings))


def _loop_of(embedder: TextEmbedder, settings: InferenceSettings) -> EmbedderLoop:
    return EmbedderLoop(embedder, queue_capacity=settings.queue_capacity, clock=SystemClock())
