"""Work in threads of this process: workers for trusted schemas, and a guard against panics."""

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


def without_panic(work: Callable[..., ResultT], arguments: tuple[object, ...]) -> ResultT:
    """Do the work; turn a panic of a library written in Rust, which is not an Exception, into a RuntimeError."""
    try:
        return work(*arguments)
    except Exception:
        raise
    except BaseException as panic:
        raise RuntimeError("a library panicked") from panic
