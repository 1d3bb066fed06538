"""Compile, with the last results kept by hash."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

from services.constraint.core.compilation import Compiled, Source
from services.constraint.core.work import Work
from services.constraint.ports import Workers


@dataclass(slots=True)
class _Compiling:
    task: asyncio.Task[Compiled]
    callers: int = 0


class CompileCache:
    """Has sources compiled. Equal sources at the same time are compiled once."""

    def __init__(self, work: Work, workers: Workers, entries: int) -> None:
        self._work = work
        self._workers = workers
        self._entries = entries
        self._done: OrderedDict[str, Compiled] = OrderedDict()
        self._running: dict[str, _Compiling] = {}

    async def compile(self, source: Source) -> tuple[Compiled, bool]:
        """Return the compiled source and whether it was in the cache; raises what compiling raises."""
        key = source.hash
        compiled = self._done.get(key)
        if compiled is not None:
            self._done.move_to_end(key)
            return compiled, True
        running = self._running.get(key)
        if running is None:
            running = _Compiling(asyncio.create_task(self._workers.run(self._work.compile, source)))
            self._running[key] = running
            running.task.add_done_callback(lambda done: self._finish(key, done))
        running.callers += 1
        try:
            return await asyncio.shield(running.task), False
        finally:
            # A caller that goes away must not take the work from the others, and the last one takes it along.
            running.callers -= 1
            if not running.callers:
                running.task.cancel()

    def _finish(self, key: str, task: asyncio.Task[Compiled]) -> None:
        if self._running[key].task is task:
            del self._running[key]
        if not task.cancelled() and task.exception() is None:
            self._done[key] = task.result()
            while len(self._done) > self._entries:
                self._done.popitem(last=False)
