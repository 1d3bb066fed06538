"""Runs work in threads of this process: workers for trusted schemas, and a guard against panics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

ResultT = TypeVar("ResultT")


class ThreadWorkers:
    """Implements Workers in threads, without limits on time and memory."""

    async def run(self, work: Callable[..., ResultT], *arguments: object) -> ResultT:
        """Run the work in a thread."""
        return await asyncio.to_thread(work, *arguments)


def without_panic(work: Callable[..., ResultT], arguments: tuple[object, ...]) -> ResultT:
    """Do the work. A panic of a Rust library, which is not an Exception, is raised as a RuntimeError."""
    try:
        return work(*arguments)
    except Exception:
        raise
    except BaseException as panic:
        raise RuntimeError("a library panicked") from panic
