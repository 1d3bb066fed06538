"""Runs the work of built-in tools in worker processes that limit its memory and time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from pagantic_common.domain.errors import InvalidRequest, Overloaded, Unavailable
from pagantic_common.domain.messages import ToolFailed
from pagantic_common.workers.fair_places import keep_place_until
from pagantic_common.workers.process_workers import ProcessWorkers

ResultT = TypeVar("ResultT")


async def run_confined(workers: ProcessWorkers, work: Callable[..., ResultT], *arguments: object) -> ResultT:
    """Run work in a worker process. Raises ToolFailed if the work raises InvalidRequest or exceeds the limits.

    The call holds its place until the work has ended, even if the caller has left.
    """
    running = asyncio.ensure_future(workers.run(work, *arguments))
    keep_place_until(running)
    try:
        return await asyncio.shield(running)
    except InvalidRequest as error:
        raise ToolFailed(str(error)) from None
    except (Overloaded, Unavailable) as error:
        raise ToolFailed(str(error), is_final=False) from None
