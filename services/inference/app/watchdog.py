"""Finds out that an engine's thread is stuck or dead, and ends what waits for it."""

from __future__ import annotations

import asyncio

from pagantic_common.domain.clock import Clock
from pagantic_common.telemetry.logging import get_logger
from services.inference.app.models import Models

CHECK_INTERVAL_S = 1.0

log = get_logger(__name__)


async def wait_until_broken(
    models: Models, *, step_timeout_s: float, clock: Clock, interval_s: float = CHECK_INTERVAL_S
) -> str:
    """Return why the service can serve no more, once a step takes longer than `step_timeout_s` or a thread has died.

    The streams of that engine have then ended with INFERENCE_MODEL_UNAVAILABLE, and it takes no more requests.
    """
    while True:
        for served in models.loaded:
            loop = served.generation.loop if served.generation is not None else served.embedding
            if loop is None:
                continue
            if loop.stuck_for_s(clock.monotonic_s()) > step_timeout_s:
                loop.give_up(f"a step takes longer than {step_timeout_s:g} s")
            if loop.broken_because:
                return f"model {served.info.name!r}: {loop.broken_because}"
        await asyncio.sleep(interval_s)
