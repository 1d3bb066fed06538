"""Delivers the events of one execution to its watchers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence

from pagantic_common.domain.errors import PaganticError
from services.orchestrator.core.execution.events import Completed, Event
from services.orchestrator.core.model.response import Response

WATCHER_CAPACITY = 4096  # maximum number of events that wait for a watcher before streamed text is dropped

_End = PaganticError | None


class Broadcast:
    """The watchers of one execution.

    Every watcher receives every stored event from the first on. A watch ends after Completed, or with the error that
    stopped the execution. With `keeps_text`, a watcher also receives the text streamed after the last stored event.
    """

    def __init__(self, stored: Sequence[Event] = (), *, keeps_text: bool = False) -> None:
        self._stored: list[Event] = list(stored)
        self._keeps_text = keeps_text
        self._text: list[Event] = []
        self._watchers: list[asyncio.Queue[Event | _End]] = []
        self._ended: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

    @property
    def is_ended(self) -> bool:
        """Whether no more events will be delivered."""
        return self._ended.done()

    def show(self, event: Event) -> None:
        """Deliver an event. A slow watcher misses only streamed text, which the response contains in full."""
        if event.is_stored:
            self._stored.append(event)
            self._text.clear()
        elif self._keeps_text:
            self._text.append(event)
        for watcher in self._watchers:
            if event.is_stored or watcher.qsize() < WATCHER_CAPACITY:
                watcher.put_nowait(event)
        if isinstance(event.payload, Completed) and not self.is_ended:
            self._ended.set_result(event.payload.response)
            self._end_watches(None)

    def abandon(self, error: PaganticError) -> None:
        """End every watch with an error, because the end of the execution could not be recorded."""
        if self.is_ended:
            return
        self._ended.set_exception(error)
        self._ended.exception()  # otherwise asyncio logs an exception that was never retrieved
        self._end_watches(error)

    def _end_watches(self, end: _End) -> None:
        for watcher in self._watchers:
            watcher.put_nowait(end)

    async def wait_end(self) -> Response:
        """Return the response once it is stored. Raises the error if the end could not be recorded."""
        return await asyncio.shield(self._ended)

    async def watch(self, after: int = 0) -> AsyncGenerator[Event, None]:
        """Yield the stored events after a sequence number, the text streamed since, and new events until the end."""
        queue: asyncio.Queue[Event | _End] = asyncio.Queue()
        for event in self._stored:
            if event.sequence > after:
                queue.put_nowait(event)
        for event in self._text:
            queue.put_nowait(event)
        if self.is_ended:
            error = self._ended.exception()
            queue.put_nowait(error if isinstance(error, PaganticError) else None)
        self._watchers.append(queue)
        try:
            while (item := await queue.get()) is not None:
                if isinstance(item, PaganticError):
                    raise item
                yield item
        finally:
            with contextlib.suppress(ValueError):
                self._watchers.remove(queue)
