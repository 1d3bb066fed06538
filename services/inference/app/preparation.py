"""Runs the threads that prepare requests for a model: they tokenize, render, count and encode images, but never decode.

Preparing an image takes a second or more. A worker process decodes the image file. A thread encodes one image at a time
while the engine runs its steps. Encoded images are cached.

Invariants:
    1. A text with more bytes than the context window can hold is rejected before it is tokenized.
    2. At most `max_waiting` calls and `MAX_WAITING_IMAGES` images wait; any further call or image is rejected.
    3. `close` returns only after the last thread has stopped using the model, even if the caller of that thread has
       left.
    4. An image that cannot be decoded or encoded fails only the requests that contain the image.
    5. Tenants do not share encoded images, so that the encoding time never reveals another tenant's image.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, TypeVar

from pagantic_common.domain.errors import ErrorCode, InvalidRequest, Overloaded, Unavailable
from pagantic_common.domain.images import Image
from pagantic_common.telemetry.scope import current_principal
from pagantic_common.workers.thread_workers import without_panic
from pagantic_common.workers.work_cache import WorkCache
from services.inference.core.decoding.images import DecodedImage, EncodedImage
from services.inference.core.generation import ChatPrompt, Prompt
from services.inference.ports import ImageEncoder, Tokenizer

CACHE_BYTES = 128 * 1024 * 1024
MAX_WAITING_IMAGES = 64
IMAGE_RETRY_AFTER_S = 2.0

Decode = Callable[[Image], Awaitable[DecodedImage]]
THREADS = 2
MAX_WAITING = 256
RETRY_AFTER_S = 1.0

ResultT = TypeVar("ResultT")


class ImagePreparation:
    """Turns the images of messages into parts of a prompt, and owns the encoder.

    Not thread-safe: use it from a single event loop.

    Args:
        encoder: The model's encoder.
        decode: Decodes an image in a bounded process.
        monotonic_s: Returns the current time.
    """

    def __init__(self, encoder: ImageEncoder, decode: Decode, *, monotonic_s: Callable[[], float]) -> None:
        self._encoder = encoder
        self._decode = decode
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="images")
        self._pending = 0
        self._encoded: WorkCache[EncodedImage] = WorkCache(
            max_bytes=CACHE_BYTES, size_of=lambda image: image.size_bytes, monotonic_s=monotonic_s
        )

    async def encode(self, images: Sequence[Image], *, only_counts: bool = False) -> list[EncodedImage]:
        """Return the encoded images, in order. With `only_counts`, they have no embeddings.

        Raises InvalidRequest if an image is unreadable, and Overloaded if too many images wait.
        """
        return [await self._get(image, only_counts=only_counts) for image in images]

    async def _get(self, image: Image, *, only_counts: bool) -> EncodedImage:
        digest = hashlib.sha256(image.data.encode()).digest()
        key = f"{current_principal().tenant}\n{only_counts}\n{digest.hex()}"
        encoded, _ = await self._encoded.get(key, lambda: self._make(image, digest, only_counts=only_counts))
        return encoded

    async def _make(self, image: Image, digest: bytes, *, only_counts: bool) -> EncodedImage:
        if self._pending >= MAX_WAITING_IMAGES:
            raise Overloaded(
                f"{MAX_WAITING_IMAGES} images wait to be encoded, which is the limit",
                code=ErrorCode.INFERENCE_OVERLOADED,
                retry_after_s=IMAGE_RETRY_AFTER_S,
            )
        self._pending += 1
        try:
            decoded = await self._decode(image)
            work = self._thread.submit(self._encoder.encode, decoded, only_counts=only_counts)
            return EncodedImage(digest, await asyncio.wrap_future(work))
        finally:
            self._pending -= 1

    async def close(self) -> None:
        """Finish encoding the current image, drop the waiting images, and free the encoder."""
        await asyncio.to_thread(self._thread.shutdown, cancel_futures=True)
        self._encoder.close()


class Preparation:
    """Runs functions on threads that may use one model. Not thread-safe: use it from a single event loop."""

    is_estimate = False

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        window_tokens: int,
        max_waiting: int = MAX_WAITING,
        images: ImagePreparation | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._images = images
        self._window_tokens = window_tokens
        self._max_bytes = window_tokens * tokenizer.longest_token_bytes
        self._max_waiting = max_waiting
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="preparation")
        self._pending = 0
        self._is_closing = False

    async def run(self, work: Callable[..., ResultT], *arguments: object) -> ResultT:
        """Run a function that may use the model. The function runs to completion even if the caller gives up.

        Raises the function's errors, Overloaded (INFERENCE_OVERLOADED) if too many calls wait, and Unavailable
        (INFERENCE_MODEL_UNAVAILABLE) while the model is being closed.
        """
        self._check_open()
        if self._pending >= self._max_waiting + THREADS:
            raise Overloaded(
                f"{self._max_waiting} requests wait to be prepared, which is the limit",
                code=ErrorCode.INFERENCE_OVERLOADED,
                retry_after_s=RETRY_AFTER_S,
            )
        context = copy_context()
        self._pending += 1
        call = asyncio.get_running_loop().run_in_executor(self._threads, context.run, without_panic, work, arguments)
        call.add_done_callback(self._end)
        return await call

    def check_text(self, name: str, *texts: str) -> None:
        """Raise InvalidRequest (INFERENCE_CONTEXT_EXCEEDED) if the texts are too long for the context window.

        The error message describes the texts as `name`.
        """
        size = sum(map(len, texts))
        if size <= self._max_bytes:
            size = sum(len(text.encode()) for text in texts)
        if size > self._max_bytes:
            raise InvalidRequest(
                f"{name} has {size} bytes or more, the context window of {self._window_tokens} tokens holds at most "
                f"{self._max_bytes}: shorten it",
                code=ErrorCode.INFERENCE_CONTEXT_EXCEEDED,
                details={"bytes": size, "max_bytes": self._max_bytes, "context_window": self._window_tokens},
            )

    def check_tokens(self, name: str, tokens: Sequence[int]) -> None:
        """Raise InvalidRequest (INFERENCE_CONTEXT_EXCEEDED) if there are more tokens than the context window holds."""
        if len(tokens) > self._window_tokens:
            raise InvalidRequest(
                f"{name} has {len(tokens)} tokens, the context window holds {self._window_tokens}: send fewer at once",
                code=ErrorCode.INFERENCE_CONTEXT_EXCEEDED,
                details={"prompt_tokens": len(tokens), "context_window": self._window_tokens},
            )

    async def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Split text into token ids."""
        self.check_text("the text", text)
        return await self.run(
            lambda: self._tokenizer.tokenize(text, add_special=add_special, parse_special=parse_special)
        )

    async def count(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text."""
        for position, text in enumerate(texts):
            self.check_text(f"texts[{position}]", text)
        return [len(tokens) for tokens in await self.run(self._tokenize_all, texts)]

    async def tokenize_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Split each text into token ids, without special tokens."""
        self.check_text("a text", max(texts, key=len))
        return await self.run(self._tokenize_all, texts)

    async def detokenize(self, tokens: Sequence[int], *, with_special: bool) -> bytes:
        """Return the bytes of the tokens. Raises InvalidRequest if the context window cannot hold all the tokens."""
        self.check_tokens("the text", tokens)
        return await self.run(lambda: self._tokenizer.detokenize(tokens, with_special=with_special))

    async def encode_images(self, prompt: Prompt, *, only_counts: bool = False) -> Sequence[EncodedImage]:
        """Return the encoded images of a prompt's messages, in order. With `only_counts`, they have no embeddings.

        Raises InvalidRequest if an image is unreadable, Overloaded if too many images wait, and Unavailable while the
        model is being closed.
        """
        if self._images is None or not isinstance(prompt, ChatPrompt):
            return ()
        self._check_open()
        images = [image for message in prompt.messages for image in message.images]
        return await self._images.encode(images, only_counts=only_counts)

    async def close(self) -> None:
        """Reject new calls, and wait until the running calls have stopped using the model."""
        self._is_closing = True
        await asyncio.to_thread(self._threads.shutdown)
        if self._images is not None:
            await self._images.close()

    def _check_open(self) -> None:
        if self._is_closing:
            raise Unavailable("the model is being unloaded", code=ErrorCode.INFERENCE_MODEL_UNAVAILABLE)

    def _tokenize_all(self, texts: Iterable[str]) -> list[list[int]]:
        return [self._tokenizer.tokenize(text, add_special=False, parse_special=False) for text in texts]

    def _end(self, _call: asyncio.Future[Any]) -> None:
        self._pending -= 1
