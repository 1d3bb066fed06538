"""Lays out images in a prompt, as positions with embeddings from the image encoder instead of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Marks a position of an image among the tokens of a prompt. No model has this token.
IMAGE_TOKEN = -1

Embeddings = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class DecodedImage:
    """The pixels of an image: three bytes each, row by row from the top."""

    width: int
    height: int
    rgb: bytes


@dataclass(frozen=True, slots=True, eq=False)
class ImagePiece:
    """A part of an image in a prompt: either tokens or positions.

    `embeddings` is None if the positions are only counted.
    """

    tokens: tuple[int, ...] = ()
    positions: int = 0
    embeddings: Embeddings | None = None


@dataclass(frozen=True, slots=True, eq=False)
class EncodedImage:
    """An image that was encoded for one model. `digest` is the SHA-256 of the image's file."""

    digest: bytes
    pieces: tuple[ImagePiece, ...]

    @property
    def size_bytes(self) -> int:
        """The approximate number of bytes in memory."""
        return 1024 + sum(piece.embeddings.nbytes for piece in self.pieces if piece.embeddings is not None)


@dataclass(frozen=True, slots=True, eq=False)
class ImageSpan:
    """The positions of an image in a prompt, from `start` on. Equal digests mean equal embeddings."""

    start: int
    embeddings: Embeddings
    digest: bytes

    @property
    def end(self) -> int:
        """The position after the image."""
        return self.start + len(self.embeddings)


def lay_out(image: EncodedImage, start: int) -> tuple[list[int], list[ImageSpan]]:
    """Return the tokens of an image that begins at position `start` of a prompt, and the spans with embeddings."""
    tokens: list[int] = []
    spans: list[ImageSpan] = []
    for index, piece in enumerate(image.pieces):
        if piece.embeddings is not None:
            digest = image.digest + index.to_bytes(4, "little")
            spans.append(ImageSpan(start + len(tokens), piece.embeddings, digest))
        tokens += piece.tokens or [IMAGE_TOKEN] * piece.positions
    return tokens, spans


def run_end(spans: Sequence[ImageSpan], position: int, end: int) -> int:
    """Return the end of the run at a position. A run is the positions of one image, or tokens up to the next image."""
    for span in spans:
        if position < span.end:
            return span.end if position >= span.start else min(span.start, end)
    return end


def embeddings_at(spans: Sequence[ImageSpan], position: int, end: int) -> Embeddings | None:
    """Return the embeddings from `position` up to `end`, within one image, or None if a token is at `position`."""
    for span in spans:
        if span.start <= position < span.end:
            return span.embeddings[position - span.start : end - span.start]
    return None
