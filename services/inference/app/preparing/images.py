"""The images of a prompt: decoded in a worker process, encoded in a thread, and kept while they are used.

An image takes a second or more, so it is encoded beside the engine's steps, one at a time. Invariants:
    1. An image that cannot be decoded or encoded fails the requests that have it, and no others.
    2. Nobody finds out by the time that it takes whether another tenant sent an image: each has its own.
    3. At most `MAX_WAITING` images wait for the encoder; one more is refused.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from pagantic_common.domain.errors import ErrorCode, Overloaded
from pagantic_common.domain.images import Image
from pagantic_common.telemetry.scope import current_principal
from pagantic_common.workers.work_cache import WorkCache
from services.inference.core.decoding.images import DecodedImage, EncodedImage
from services.inference.ports import ImageEncoder

CACHE_BYTES = 128 * 1024 * 1024
MAX_WAITING = 64
RETRY_AFTER_S = 2.0

Decode = Callable[[Image], Awaitable[DecodedImage]]


class ImagePreparation:
    """Turns the images of messages into parts of a prompt, with an encoder, which it owns. Used from one event loop.

    Args:
        encoder: The model's encoder.
        decode: Decodes an image in a bounded process.
        monotonic_s: Returns the time.
    """

    def __init__(self, encoder: ImageEncoder, decode: Decode, *, monotonic_s: Callable[[], float]) -> None:
        self._encoder = encoder
        self._decode = decode
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="images")
        self._pending = 0
        self._known: WorkCache[EncodedImage] = WorkCache(
            max_bytes=CACHE_BYTES, size_of=lambda image: image.size_bytes, monotonic_s=monotonic_s
        )

    async def encode(self, images: Sequence[Image], *, only_counts: bool = False) -> list[EncodedImage]:
        """Return images, in order; with `only_counts` they have no embeddings.

        Raises InvalidRequest for an image that cannot be read, and Overloaded when too many wait.
        """
        return [await self._get(image, only_counts=only_counts) for image in images]

    async def _get(self, image: Image, *, only_counts: bool) -> EncodedImage:
        digest = hashlib.sha256(image.data.encode()).digest()
        key = f"{current_principal().tenant}\n{only_counts}\n{digest.hex()}"
        found, _ = await self._known.get(key, lambda: self._make(image, digest, only_counts=only_counts))
        return found

    async def _make(self, image: Image, digest: bytes, *, only_counts: bool) -> EncodedImage:
        if self._pending >= MAX_WAITING:
            raise Overloaded(
                f"{MAX_WAITING} images wait to be encoded, which is the limit",
                code=ErrorCode.INFERENCE_OVERLOADED,
                retry_after_s=RETRY_AFTER_S,
            )
        self._pending += 1
        try:
            decoded = await self._decode(image)
            work = self._thread.submit(self._encoder.encode, decoded, only_counts=only_counts)
            return EncodedImage(digest, await asyncio.wrap_future(work))
        finally:
            self._pending -= 1

    async def close(self) -> None:
        """Wait for the image that is being encoded, drop the others, and free the encoder."""
        await asyncio.to_thread(self._thread.shutdown, cancel_futures=True)
        self._encoder.close()
