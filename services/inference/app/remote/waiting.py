"""Waits for an engine no longer than the caller's deadline and the engine's own limit allow."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable
from typing import TypeVar

from pagantic_common.domain.clock import Clock
from pagantic_common.domain.errors import DeadlineExceeded, ErrorCode, Unavailable
from pagantic_common.telemetry.scope import current_deadline

RETRY_AFTER_S = 1.0

ResultT = TypeVar("ResultT")


async def within_limits(awaited: Awaitable[ResultT], clock: Clock, model: str, silence_s: float = math.inf) -> ResultT:
    """Return what is awaited.

    Raises DeadlineExceeded when the caller's deadline passes, and Unavailable (INFERENCE_MODEL_UNAVAILABLE) after
    `silence_s`.
    """
    deadline = current_deadline()
    wait_s = deadline.limit(silence_s, clock.monotonic_s())
    try:
        async with asyncio.timeout(None if math.isinf(wait_s) else wait_s):
            return await awaited
    except TimeoutError:
        if deadline.has_passed(clock.monotonic_s()):
            raise DeadlineExceeded(f"the deadline passed before the engine of model {model!r} answered") from None
        raise Unavailable(
            f"the engine of model {model!r} was silent for {silence_s:g} s",
            code=ErrorCode.INFERENCE_MODEL_UNAVAILABLE,
            retry_after_s=RETRY_AFTER_S,
        ) from None
