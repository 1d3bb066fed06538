"""The store of KV cells for all models of a service: a thread that writes to it, and at most one that reads.

Invariants:
    1. Nobody waits for the writer: what does not fit into its queue is dropped and counted.
    2. While a reading thread is stuck, no other one starts.
    3. Requests of at most MAX_WAITING prompts wait for their turn to read: where reading is slower than requests come,
       the others are computed.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass
from queue import SimpleQueue

from pagantic_common.telemetry.logging import get_logger
from services.inference.core.scheduling.cells.operations import Cells
from services.inference.ports import PrefixStore

MAX_QUEUED_BYTES = 256 * 1024 * 1024
MAX_WAITING = 4
_CLOSE_S = 5.0

log = get_logger(__name__)


@dataclass(slots=True)
class StorageCounts:
    """What happened since the start."""

    read_tokens: int = 0
    written_tokens: int = 0
    dropped_blocks: int = 0


class BlockStorage:
    """Writes blocks behind the back of the engines, and reads them for one request at a time.

    Attributes:
        counts: What happened since the start.
    """

    def __init__(self, store: PrefixStore, *, max_queued_bytes: int = MAX_QUEUED_BYTES) -> None:
        self.counts = StorageCounts()
        self._turn = asyncio.Lock()
        self._waiting: Counter[str] = Counter()
        self._store = store
        self._max_queued_bytes = max_queued_bytes
        self._queue: SimpleQueue[tuple[str, Cells, int] | None] = SimpleQueue()
        self._queued_bytes = 0
        self._last_block_bytes = 0
        self._is_reading = False
        self._lock = threading.Lock()
        self._writer = threading.Thread(target=self._write_all, name="block-writer", daemon=True)
        self._writer.start()

    @asynccontextmanager
    async def turn(self, name: str) -> AsyncIterator[bool]:
        """Wait until no other request reads; yields False, at once, where too many prompts wait already.

        `name` is that of the prompt's last block.
        """
        if name not in self._waiting and len(self._waiting) >= MAX_WAITING:
            yield False
            return
        self._waiting[name] += 1
        try:
            async with self._turn:
                yield True
        finally:
            self._waiting -= Counter([name])

    def put(self, name: str, copy: Callable[[], Cells], tokens: int) -> bool:
        """Let a block of so many tokens be written; False if too much is queued already. Callable from any thread.

        The cells are copied only if one more block like the last has room: a store that is stuck costs the engine none.
        """
        cells = None
        if self._queued_bytes + self._last_block_bytes <= self._max_queued_bytes:
            cells = copy()
        with self._lock:
            if cells is not None:
                self._last_block_bytes = cells.size
            # The engine gives no bytes for cells that it cannot copy.
            if cells is None or not 0 < cells.size <= self._max_queued_bytes - self._queued_bytes:
                self.counts.dropped_blocks += 1
                return False
            self._queued_bytes += cells.size
            self._queue.put((name, cells, tokens))
        return True

    def fetch(self, names: Sequence[str], wanted: int, max_bytes: int) -> Future[list[Cells]] | None:
        """Read the first blocks up to a missing one, if the one at index `wanted` is there; None while one is stuck.

        A block has at most `max_bytes`.
        """
        with self._lock:
            if self._is_reading:
                return None
            self._is_reading = True
        future: Future[list[Cells]] = Future()
        threading.Thread(
            target=self._fetch, args=(future, names, wanted, max_bytes), name="block-reader", daemon=True
        ).start()
        return future

    def close(self) -> None:
        """Write what is queued, unless that takes long."""
        self._queue.put(None)
        self._writer.join(_CLOSE_S)

    def _write_all(self) -> None:
        while (item := self._queue.get()) is not None:
            name, cells, tokens = item
            self._write(name, cells, tokens)
            with self._lock:
                self._queued_bytes -= cells.size

    def _write(self, name: str, cells: Cells, tokens: int) -> None:
        try:
            if self._store.touch(name):  # another replica has written it, or this one long ago
                return
            is_written = self._store.write(name, cells)
        except Exception:
            log.exception("a block could not be stored")
            is_written = False
        if is_written:
            self.counts.written_tokens += tokens
        else:
            self.counts.dropped_blocks += 1

    def _fetch(self, future: Future[list[Cells]], names: Sequence[str], wanted: int, max_bytes: int) -> None:
        found: list[Cells] = []
        try:
            if self._store.touch(names[wanted]):
                found = self._read(future, names, max_bytes)
        except Exception:
            log.exception("blocks could not be read")
        with self._lock:
            self._is_reading = False
        if future.set_running_or_notify_cancel():
            future.set_result(found)

    def _read(self, future: Future[list[Cells]], names: Sequence[str], max_bytes: int) -> list[Cells]:
        found: list[Cells] = []
        for name in names:
            cells = None if future.cancelled() else self._store.read(name, max_bytes)
            if cells is None:
                break
            found.append(cells)
        for name in reversed(names[: len(found)]):  # the first one is the youngest then, and is deleted last
            self._store.touch(name)
        return found
