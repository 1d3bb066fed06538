"""Loads a model that makes embeddings, with the loop that computes them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from pagantic_common.domain.messages import ModelInfo
from pagantic_common.telemetry.clock import SystemClock
from services.inference.adapters.llama_cpp_embedder import EmbedderOptions, LlamaCppEmbedder
from services.inference.app.embedder_loop import EmbedderLoop
from services.inference.app.embedding import Embedding
from services.inference.settings import InferenceSettings


async def load_embedding(
    path: Path, info: ModelInfo, settings: InferenceSettings, options: EmbedderOptions
) -> Embedding:
    """Load a model."""
    embedder = await asyncio.to_thread(LlamaCppEmbedder, path, info, options)
    return Embedding(EmbedderLoop(embedder, queue_capacity=settings.queue_capacity, clock=SystemClock()))
