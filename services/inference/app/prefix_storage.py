"""Stores the KV cells of repeated prompts outside the process, and restores them before a request is submitted.

Theory of operation. All models of a service share one `BlockStorage`. It has a thread that writes blocks, and at most
one thread that reads blocks. The engine's thread only copies cells into a bounded queue. `Submission` names the blocks
of a prompt. It reads the blocks that are missing from the cache, for a limited time, before it passes the request to
the engine's loop.

Invariants:
    1. The engine never waits for the writer: a block that does not fit into the writer's queue is dropped and counted.
    2. While a reading thread is stuck, no other reading thread starts.
    3. At most MAX_WAITING distinct prompts wait to be read. If reads are slower than requests arrive, further
       prompts are computed.
    4. After any failure of the store, the prompt is computed.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from queue import SimpleQueue

from pagantic_common.telemetry.logging import get_logger
from services.inference.app.engine_loop import Deliver, EngineLoop
from services.inference.core.scheduling.branches import DecodeRequest
from services.inference.core.scheduling.operations import Cells
from services.inference.core.scheduling.prefix_tree import WORTH_PARKING
from services.inference.core.scheduling.stored_blocks import BLOCK_TOKENS, name_blocks
from services.inference.ports import PrefixStore

MAX_QUEUED_BYTES = 256 * 1024 * 1024
MAX_WAITING = 4
_CLOSE_S = 5.0

log = get_logger(__name__)
READ_S = 2.0  # maximum time for which a prompt waits for the store
REST_S = 30.0  # pause of reads after a slow read


@dataclass(slots=True)
class StorageCounts:
    """The numbers of tokens read, tokens written and blocks dropped since the service started."""

    read_tokens: int = 0
    written_tokens: int = 0
    dropped_blocks: int = 0


class BlockStorage:
    """Writes blocks in the background, and reads blocks for one request at a time.

    Attributes:
        counts: The tokens read, tokens written and blocks dropped since the service started.
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
        """Wait until this prompt may be read from the store, and yield True.

        Yields False at once if too many prompts wait. `name` is the name of the prompt's last block.
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
        """Queue a block of `tokens` tokens for writing. Callable from any thread.

        Returns False if the queue is full. Cells are copied only if the queue has room for a block as large as the last
        block, so the engine copies no cells while the store is stuck.
        """
        cells = None
        if self._queued_bytes + self._last_block_bytes <= self._max_queued_bytes:
            cells = copy()
        with self._lock:
            if cells is not None:
                self._last_block_bytes = cells.size
            # An empty copy means that the engine could not copy the cells.
            if cells is None or not 0 < cells.size <= self._max_queued_bytes - self._queued_bytes:
                self.counts.dropped_blocks += 1
                return False
            self._queued_bytes += cells.size
            self._queue.put((name, cells, tokens))
        return True

    def fetch(self, names: Sequence[str], wanted: int, max_bytes: int) -> Future[list[Cells]] | None:
        """Read blocks in order up to the first missing block, if the block at index `wanted` exists.

        Returns None while a read is stuck. A block has at most `max_bytes` bytes.
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
        """Write the queued blocks, for at most _CLOSE_S seconds."""
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
            if self._store.touch(name):  # this or another replica has already written the block
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
        blocks: list[Cells] = []
        try:
            if self._store.touch(names[wanted]):
                blocks = self._read(future, names, max_bytes)
        except Exception:
            log.exception("blocks could not be read")
        with self._lock:
            self._is_reading = False
        if future.set_running_or_notify_cancel():
            future.set_result(blocks)

    def _read(self, future: Future[list[Cells]], names: Sequence[str], max_bytes: int) -> list[Cells]:
        blocks: list[Cells] = []
        for name in names:
            cells = None if future.cancelled() else self._store.read(name, max_bytes)
            if cells is None:
                break
            blocks.append(cells)
        for name in reversed(names[: len(blocks)]):  # the first block becomes the newest, so it is deleted last
            self._store.touch(name)
        return blocks


@dataclass(frozen=True, slots=True)
class ModelStorage:
    """The block storage, and the digest of a model's files."""

    blocks: BlockStorage
    model_digest: str


class Submission:
    """Submits requests to the loop of one model after restoring stored cells.

    Without `storage`, it only submits requests.
    """

    def __init__(self, loop: EngineLoop, storage: ModelStorage | None = None, *, read_s: float = READ_S) -> None:
        self.loop = loop
        self._blocks = storage.blocks if storage is not None else None
        self._read_s = read_s
        self._rests_until_s = -math.inf
        # The limit is twice the size of the cells: files also contain positions, and some models have two caches.
        self._max_block_bytes = 2 * BLOCK_TOKENS * loop.engine.kv_bytes_per_token + 1024 * 1024

    @property
    def _max_blocks(self) -> int:
        """The maximum number of blocks in host memory. It changes with the tuning, which determines the cell size."""
        return self.loop.max_parked_tokens // BLOCK_TOKENS

    async def submit(self, request: DecodeRequest, deliver: Deliver) -> int:
        """Queue a request and return its number; see `EngineLoop.submit`."""
        if self._blocks is not None and self.loop.root:
            request = await self._prepare(request, self._blocks)
        return self.loop.submit(request, deliver)

    async def _prepare(self, request: DecodeRequest, storage: BlockStorage) -> DecodeRequest:
        """Return a request with the names of its blocks, after parking the stored blocks of its prompt.

        Raises the errors of `check_capacity`. If the store fails, the prompt is computed.
        """
        tokens = request.tokens
        if request.images:  # names of blocks are hashes of tokens, not of images
            tokens = tokens[: request.images[0].start]
        names = name_blocks(self.loop.root, tokens, tenant=request.tenant, shared_tokens=request.shared_tokens)
        request = replace(request, blocks=names)
        if self._wanted(request) is None:
            return request
        with suppress(TimeoutError):
            async with asyncio.timeout(self._read_s):
                await self._bring_back(request, storage)
        return request

    async def _bring_back(self, request: DecodeRequest, storage: BlockStorage) -> None:
        async with storage.turn(request.blocks.names[-1]) as has_turn:
            first_block = self._wanted(request)
            if not has_turn or first_block is None:  # another request may have restored the prompt meanwhile
                return
            self.loop.check_capacity(request.tenant)
            fetch = storage.fetch(request.blocks.names[: self._max_blocks], first_block, self._max_block_bytes)
            if fetch is None:
                return
            pieces = await self._result_of(fetch)
            if len(pieces) > first_block and self.loop.adopt(request, pieces):
                storage.counts.read_tokens += len(pieces) * BLOCK_TOKENS

    async def _result_of(self, fetch: Future[list[Cells]]) -> list[Cells]:
        """Wait for a read and return its blocks. After a slow read, no read starts for REST_S seconds."""
        now_s = asyncio.get_running_loop().time
        started_s = now_s()
        try:
            return await asyncio.wrap_future(fetch)
        except asyncio.CancelledError:
            if now_s() - started_s >= self._read_s / 2:  # the other half may have been spent on waiting to read
                self._rests_until_s = now_s() + REST_S
                log.warning("the store of prefixes is slow, and not read for some time", seconds=REST_S)
            raise

    def _wanted(self, request: DecodeRequest) -> int | None:
        """Return the index of the first uncached block, or None if reading from the store is not worthwhile.

        The last token of a prompt is always computed.
        """
        if not self.loop.may_adopt or asyncio.get_running_loop().time() < self._rests_until_s:
            return None
        kept = self.loop.kept_tokens(request)
        blocks = min(len(request.blocks.names), self._max_blocks)
        reachable = min(blocks * BLOCK_TOKENS, len(request.tokens) - 1)
        if reachable < kept + WORTH_PARKING:
            return None
        return kept // BLOCK_TOKENS
