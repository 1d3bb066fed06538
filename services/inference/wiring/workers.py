"""The processes that work on what callers send before the service does: constraints, and files of images."""

from __future__ import annotations

import base64
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.domain.images import Image
from pagantic_common.grammar.engine_text import STACK_BYTES
from pagantic_common.workers.process_workers import ProcessWorkers
from pagantic_common.workers.worker_process import WorkerLimits
from services.inference.adapters import constraint_trial
from services.inference.adapters.llguidance_constraints import Workers
from services.inference.adapters.prompts import image_decoding
from services.inference.core.decoding.images import DecodedImage
from services.inference.settings import InferenceSettings

MAX_CONSTRAINT_MIB = 512  # memory of a worker that builds a constraint; the built constraint has its own bound
# The worker needs this for an image of the most pixels and for another copy of it, in other colors.
MAX_IMAGE_MIB = 768
MAX_IMAGE_S = 5.0


@dataclass(frozen=True, slots=True)
class AllWorkers:
    """The workers for constraints, and those for images, which are None if no model takes images."""

    constraints: Workers
    images: Workers | None = None

    async def decode_image(self, image: Image) -> DecodedImage:
        """Decode an image; raises InvalidRequest for one that cannot be decoded, or only with too much."""
        assert self.images is not None  # noqa: S101 - only a model that takes images asks
        try:
            width, height, pixels = await self.images.run(image_decoding.decode_image, image.media_type, image.data)
        except InvalidRequest as error:
            if error.code is ErrorCode.CONSTRAINT_TOO_COMPLEX:  # the workers' code for too much work of any kind
                raise InvalidRequest(f"an image cannot be decoded: {error}") from None
            raise
        return DecodedImage(width, height, base64.b64decode(pixels))


@asynccontextmanager
async def open_workers(settings: InferenceSettings) -> AsyncIterator[AllWorkers]:
    """Start the workers; threads that start later have the stack that building a constraint needs."""
    threading.stack_size(STACK_BYTES)
    waiting = settings.queue_capacity + settings.max_running
    limits = WorkerLimits(
        settings.constraint_workers,
        settings.max_constraint_s,
        MAX_CONSTRAINT_MIB,
        waiting,
        constraint_trial.__name__,
    )
    async with ProcessWorkers(limits) as constraints:
        if not settings.projector_path:
            yield AllWorkers(constraints)
            return
        async with open_image_workers(waiting) as images:
            yield AllWorkers(constraints, images)


def open_image_workers(waiting: int) -> ProcessWorkers:
    """Return a process that decodes images, of which so many may wait; a context manager starts it."""
    module = image_decoding.__name__
    return ProcessWorkers(WorkerLimits(1, MAX_IMAGE_S, MAX_IMAGE_MIB, waiting, module, advice="send a smaller image"))
