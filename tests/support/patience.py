"""Asking again: on a busy machine, work may get too little of the processor for a service to judge it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TypeVar

from pagantic_common.domain.errors import Unavailable

TRIES = 10
BETWEEN_S = 1.0

Answer = TypeVar("Answer")


async def until_told(ask: Callable[[], Awaitable[Answer]]) -> Answer:
    """Return what the service answers when it can tell; raises Unavailable after ten tries."""
    for _ in range(TRIES - 1):
        with contextlib.suppress(Unavailable):
            return await ask()
        await asyncio.sleep(BETWEEN_S)
    return await ask()
