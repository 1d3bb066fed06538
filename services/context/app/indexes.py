"""Caches the indexes of collections in memory, updates them by changes, and drops them when memory is short."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field

from services.context.core.document import CollectionKey
from services.context.core.search.collection_index import CollectionIndex, IndexChanges
from services.context.ports import ChunkStore

MIN_LIVE_RATIO = 0.5  # An index with a smaller share of live chunks is rebuilt.
MIN_COMPACTED = 1000  # Smaller indexes are not worth rebuilding.


@dataclass(slots=True)
class _Turns:
    """The lock of a collection's index, and the number of callers that hold or await it."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class Indexes:
    """Opens the indexes of collections.

    Args:
        store: The store of the chunks.
        max_bytes: The memory for cached indexes. The least recently used index is dropped first. The index in use may
            be larger.
    """

    def __init__(self, store: ChunkStore, max_bytes: int) -> None:
        self._store = store
        self._max_bytes = max_bytes
        self._kept: OrderedDict[CollectionKey, CollectionIndex] = OrderedDict()
        self._turns: dict[CollectionKey, _Turns] = {}
        self._opening: set[asyncio.Task[CollectionIndex]] = set()

    async def open(self, key: CollectionKey) -> CollectionIndex:
        """Return the up-to-date index of the collection. Raises NotFound if the collection does not exist."""
        # If the caller is cancelled, the update continues. No other caller may change the same index meanwhile.
        task = asyncio.create_task(self._open(key))
        self._opening.add(task)
        task.add_done_callback(self._opened)
        return await asyncio.shield(task)

    def _opened(self, task: asyncio.Task[CollectionIndex]) -> None:
        self._opening.discard(task)
        if not task.cancelled():
            task.exception()  # This marks the error as retrieved if the caller was cancelled.

    async def _open(self, key: CollectionKey) -> CollectionIndex:
        turns = self._turns.setdefault(key, _Turns())
        turns.users += 1
        try:
            async with turns.lock:
                index = await self._brought_up_to_date(key)
                self._kept[key] = index
                self._kept.move_to_end(key)
        finally:
            turns.users -= 1
            if not turns.users:
                del self._turns[key]
        self._drop_old()
        return index

    async def _brought_up_to_date(self, key: CollectionKey) -> CollectionIndex:
        index = self._kept.get(key)
        if index is None:
            return await self._read_whole(key)
        changes = await self._store.changes_since(key, index.version)
        if changes is None:
            return index
        if changes.is_whole:
            return await self._start(key, changes)
        try:
            index = await asyncio.to_thread(index.apply, changes)
        except BaseException:
            self._kept.pop(key, None)  # The index may contain only a part of the changes.
            raise
        if len(index.alive) < MIN_COMPACTED or index.live_count >= MIN_LIVE_RATIO * len(index.alive):
            return index
        return await self._read_whole(key)

    async def _read_whole(self, key: CollectionKey) -> CollectionIndex:
        return await self._start(key, await self._store.read_whole(key))

    async def _start(self, key: CollectionKey, changes: IndexChanges) -> CollectionIndex:
        self._kept.pop(key, None)  # This frees the old index before the new index is built.
        return await asyncio.to_thread(CollectionIndex(changes.options).apply, changes)

    def _drop_old(self) -> None:
        while len(self._kept) > 1 and sum(index.size_bytes for index in self._kept.values()) > self._max_bytes:
            self._kept.popitem(last=False)
