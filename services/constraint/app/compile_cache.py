"""Compile, with the last results kept by hash."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from services.constraint.core.compilation import Compiled, Source
from services.constraint.core.work import Work
from services.constraint.ports import Workers


class CompileCache:
    """Has sources compiled. Equal sources at the same time are compiled once."""

    def __init__(self, work: Work, workers: Workers, entries: int) -> None:
        self._work = work
        self._workers = workers
        self._entries = entries
        self._done: OrderedDict[str, Compiled] = OrderedDict()
        self._running: dict[str, asyncio.Task[Compiled]] = {}

    async def compile(self, source: Source) -> tuple[Compiled, bool]:
        """Return the compiled source and whether it was in the cache; raises what compiling raises."""
        key = source.hash
        compiled = self._done.get(key)
        if compiled is not None:
            self._done.move_to_end(key)
            return compiled, True
        task = self._running.get(key)
        if task is None:
            task = self._running[key] = asyncio.create_task(self._workers.run(self._work.compile, source))
            task.add_done_callback(lambda done: self._finish(key, done))
        # A caller that goes away must not take the work from the others.
        return await asyncio.shield(task), False

    def _finish(self, key: str, task: asyncio.Task[Compiled]) -> None:
        del self._running[key]
        if not task.cancelled() and task.exception() is None:
            self._done[key] = task.result()
            while len(self._done) > self._entries:
                self._done.popitem(last=False)
