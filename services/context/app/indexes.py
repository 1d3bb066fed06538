"""Caches the indexes of collections in memory, updates them by changes, and drops them when memory is short.

1. The cached indexes and the estimated sizes of running builds never exceed `max_bytes` in total. A build first
   reserves its memory: it waits for running builds, and the least recently used indexes are dropped.
2. Builds of whole collections reserve their memory in order of arrival, so that many small builds cannot starve a
   large build.
3. At most one asyncio task changes the index of a collection.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field

from pagantic_common.domain.errors import PreconditionFailed
from services.context.core.document import CollectionKey
from services.context.core.search.collection_index import CollectionIndex
from services.context.ports import ChunkStore

MIN_LIVE_RATIO = 0.5  # An index with a smaller fraction of live chunks is rebuilt.
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
        max_bytes: The memory for all indexes. A single index above this size is rejected.
    """

    def __init__(self, store: ChunkStore, max_bytes: int) -> None:
        self._store = store
        self._max_bytes = max_bytes
        self._kept: OrderedDict[CollectionKey, CollectionIndex] = OrderedDict()
        self._turns: dict[CollectionKey, _Turns] = {}
        self._opening: set[asyncio.Task[CollectionIndex]] = set()
        self._reserved_bytes = 0
        self._room_changed = asyncio.Condition()
        self._line = asyncio.Lock()

    async def open(self, key: CollectionKey) -> CollectionIndex:
        """Return the up-to-date index of the collection.

        Raises NotFound if the collection does not exist, and PreconditionFailed if its index is too large.
        """
        # The update continues if the caller is cancelled, and no other caller may change the same index meanwhile.
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
                return await self._brought_up_to_date(key)
        finally:
            turns.users -= 1
            if not turns.users:
                del self._turns[key]

    async def _brought_up_to_date(self, key: CollectionKey) -> CollectionIndex:
        index = self._kept.get(key)
        if index is None:
            return await self._read_whole(key)
        changes = await self._store.changes_since(key, index.version)
        if changes is None:
            return await self._read_whole(key)
        if changes.version == index.version:
            if key in self._kept:  # the index may have been dropped meanwhile
                self._kept.move_to_end(key)
            return index
        self._kept.pop(key, None)  # If the update fails, the index contains only a part of the changes.
        async with self._room(key, index.size_bytes + changes.size_bytes):
            index = self._keep(key, await asyncio.to_thread(index.apply, changes))
        if len(index.alive) < MIN_COMPACTED or index.live_count >= MIN_LIVE_RATIO * len(index.alive):
            return index
        return await self._read_whole(key)

    async def _read_whole(self, key: CollectionKey) -> CollectionIndex:
        self._kept.pop(key, None)  # This frees the old index before the new index is built.
        size = await self._store.index_bytes(key)
        async with self._room(key, size, self._line):
            changes = await self._store.read_whole(key)
            return self._keep(key, await asyncio.to_thread(CollectionIndex(changes.options).apply, changes))

    def _keep(self, key: CollectionKey, index: CollectionIndex) -> CollectionIndex:
        self._kept[key] = index
        self._kept.move_to_end(key)
        return index

    @asynccontextmanager
    async def _room(self, key: CollectionKey, size: int, line: asyncio.Lock | None = None) -> AsyncIterator[None]:
        """Reserve `size` bytes until the block ends. Waits for free memory, and first for the lock `line`, if any."""
        if size > self._max_bytes:
            raise PreconditionFailed(
                f"the index of collection {key.name!r} needs {size} bytes of memory, at most {self._max_bytes} are "
                "allowed (MAX_INDEX_BYTES): divide the documents among several collections"
            )
        async with line or nullcontext(), self._room_changed:
            await self._room_changed.wait_for(lambda: self._reserved_bytes + size <= self._max_bytes)
            self._reserved_bytes += size
        try:
            self._drop_old()
            yield
        finally:
            self._reserved_bytes -= size
            self._drop_old()
            async with self._room_changed:
                self._room_changed.notify_all()

    def _drop_old(self) -> None:
        """Drop the least recently used indexes that do not fit into the unreserved memory."""
        kept_bytes = sum(index.size_bytes for index in self._kept.values())
        while self._kept and kept_bytes + self._reserved_bytes > self._max_bytes:
            _, index = self._kept.popitem(last=False)
            kept_bytes -= index.size_bytes
