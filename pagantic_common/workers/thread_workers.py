"""Workers that are threads of this process, for tests and for programs that trust their schemas."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

ResultT = TypeVar("ResultT")


class ThreadWorkers:
    """Implements Workers, without its limits of time and memory."""

    async def run(self, work: Callable[..., ResultT], *arguments: object) -> ResultT:
        """Run in a thread."""
        return await asyncio.to_thread(work, *arguments)
