"""Embeds texts that may be too long for a model."""

from __future__ import annotations

from collections.abc import Sequence

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.domain.text.scoring import MAX_QUERY_CHARS
from services.context.core.search.vector_index import Vectors
from services.context.ports import TextEmbedder

MAX_HALVINGS = 8


async def embed_beginning(embedder: TextEmbedder, model: str, text: str) -> Vectors:
    """Embed a text, or the beginning of one that is too long for the model."""
    return await _embed_fitting(embedder, model, [text[: len(text) >> halvings] for halvings in range(MAX_HALVINGS)])


async def embed_end(embedder: TextEmbedder, model: str, text: str) -> Vectors:
    """Embed the last 8192 characters of a text, or the end of one that is too long for the model."""
    text = text[-MAX_QUERY_CHARS:]
    ends = [text[len(text) - (len(text) >> halvings) :] for halvings in range(MAX_HALVINGS)]
    return await _embed_fitting(embedder, model, ends)


async def _embed_fitting(embedder: TextEmbedder, model: str, parts: Sequence[str]) -> Vectors:
    for part in parts[:-1]:
        try:
            return await embedder.embed(model, [part])
        except InvalidRequest as error:
            if error.code is not ErrorCode.INFERENCE_CONTEXT_EXCEEDED:
                raise
    return await embedder.embed(model, [parts[-1]])
