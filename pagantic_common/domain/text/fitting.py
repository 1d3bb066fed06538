"""Passes texts to models. If a text is too long for a model, a part that fits is passed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

import numpy as np

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.domain.text.ranking import Vectors
from pagantic_common.domain.text.scoring import MAX_QUERY_CHARS

MAX_HALVINGS = 8
MAX_TEXTS = 256  # limit for one call of an embedder

ResultT = TypeVar("ResultT")
PartsOf = Callable[[str], Sequence[str]]  # a text, then ever shorter parts of it


class TextEmbedder(Protocol):
    """Turns texts into vectors of unit length."""

    async def embed(self, model: str, texts: Sequence[str]) -> Vectors:
        """Return a row for each of at most 256 texts. Raises the errors of the inference service."""


class PrefixedEmbedder:
    """Puts the model's prefix before each text.

    It is a TextEmbedder itself, so that a shortened text keeps the prefix.
    """

    def __init__(self, embedder: TextEmbedder, prefix: str) -> None:
        self._embedder = embedder
        self._prefix = prefix

    async def embed(self, model: str, texts: Sequence[str]) -> Vectors:
        """Return a row for each text."""
        return await self._embedder.embed(model, [self._prefix + text for text in texts])


async def check_embedding_model(embedder: TextEmbedder, model: str) -> None:
    """Raise the inference service's error if it does not serve the model or the model does not produce embeddings."""
    await embedder.embed(model, ["word"])


async def embed_beginnings(embedder: TextEmbedder, model: str, texts: Sequence[str]) -> Vectors:
    """Embed texts in as few calls as possible. If a text is too long for the model, a shorter prefix is embedded.

    There must be at least one text.
    """
    return await _embed_all(embedder, model, texts, beginnings)


async def embed_ends(embedder: TextEmbedder, model: str, texts: Sequence[str]) -> Vectors:
    """Embed the last 8192 characters of each text, or a shorter end if they are too long for the model.

    The function makes as few calls as possible. There must be at least one text.
    """
    return await _embed_all(embedder, model, [ends(text)[0] for text in texts], ends)


def ends(text: str) -> list[str]:
    """Return the last 8192 characters of a text, then shorter ends, each half as long as the previous."""
    text = text[-MAX_QUERY_CHARS:]
    return [text[len(text) - (len(text) >> halvings) :] for halvings in range(MAX_HALVINGS)]


def beginnings(text: str) -> list[str]:
    """Return a text, then shorter prefixes of it, each half as long as the previous."""
    return [text[: len(text) >> halvings] for halvings in range(MAX_HALVINGS)]


def is_too_long(error: InvalidRequest) -> bool:
    """Return whether a model refused a text because of its length."""
    return error.code is ErrorCode.INFERENCE_CONTEXT_EXCEEDED


async def first_fitting(parts: Sequence[str], work: Callable[[str], Awaitable[ResultT]]) -> ResultT:
    """Return the result for the first part that fits the model.

    Raises the model's error if all parts are too long.
    """
    for part in parts[:-1]:
        try:
            return await work(part)
        except InvalidRequest as error:
            if not is_too_long(error):
                raise
    return await work(parts[-1])


async def _embed_all(embedder: TextEmbedder, model: str, texts: Sequence[str], parts_of: PartsOf) -> Vectors:
    rows = [
        await _embed_some(embedder, model, texts[start : start + MAX_TEXTS], parts_of)
        for start in range(0, len(texts), MAX_TEXTS)
    ]
    return np.concatenate(rows)


async def _embed_some(embedder: TextEmbedder, model: str, texts: Sequence[str], parts_of: PartsOf) -> Vectors:
    if len(texts) == 1:
        return await first_fitting(parts_of(texts[0]), lambda part: embedder.embed(model, [part]))
    try:
        return await embedder.embed(model, texts)
    except InvalidRequest as error:
        if not is_too_long(error):
            raise
    half = len(texts) // 2  # Halving isolates the texts that are too long in a few calls.
    parts = [await _embed_some(embedder, model, part, parts_of) for part in (texts[:half], texts[half:])]
    return np.concatenate(parts)
