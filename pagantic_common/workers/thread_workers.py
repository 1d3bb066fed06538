"""Workers that are threads of this process: for programs that trust their own schemas, and for tests."""

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
