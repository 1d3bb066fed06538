"""Notices a model whose thread is stuck or dead, and fails its requests."""

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
    """Return the reason once a model is broken: a step took longer than `step_timeout_s`, or its thread died.

    The model's requests have then failed with INFERENCE_MODEL_UNAVAILABLE, and it refuses new ones.
    """
    while True:
        for served in models.loaded:
            workload = served.workload
            if workload.stuck_for_s(clock.monotonic_s()) > step_timeout_s:
                workload.give_up(f"a step takes longer than {step_timeout_s:g} s")
            if workload.broken_because:
                return f"model {served.info.name!r}: {workload.broken_because}"
        await asyncio.sleep(interval_s)
