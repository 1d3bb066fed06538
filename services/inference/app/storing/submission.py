"""Submits requests to an engine's loop, once the stored cells of their prompts' beginnings are back."""

from __future__ import annotations

import asyncio
import math
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace

from pagantic_common.telemetry.logging import get_logger
from services.inference.app.engine_loop import Deliver, EngineLoop
from services.inference.app.storing.block_storage import BlockStorage
from services.inference.core.scheduling.branches import DecodeRequest
from services.inference.core.scheduling.cells.operations import Cells
from services.inference.core.scheduling.cells.stored_blocks import BLOCK_TOKENS, name_blocks
from services.inference.core.scheduling.prefix_tree import WORTH_PARKING

READ_S = 2.0  # A prompt waits no longer for the store.
REST_S = 30.0  # A store that was too slow is not read for so long.

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ModelStorage:
    """The store, and what tells the files of one model from those of others."""

    blocks: BlockStorage
    model_digest: str


class Submission:
    """The way of requests to the loop of one model; without a storage it is the loop's own."""

    def __init__(self, loop: EngineLoop, storage: ModelStorage | None = None, *, read_s: float = READ_S) -> None:
        self.loop = loop
        self._blocks = storage.blocks if storage is not None else None
        self._read_s = read_s
        self._rests_until_s = -math.inf
        # Twice the cells: a file has positions beside them, and some models have two caches.
        self._max_block_bytes = 2 * BLOCK_TOKENS * loop.engine.kv_bytes_per_token + 1024 * 1024

    @property
    def _max_blocks(self) -> int:
        """Blocks that host memory can take; the size of a cell may change with the tuning."""
        return self.loop.max_parked_tokens // BLOCK_TOKENS

    async def submit(self, request: DecodeRequest, deliver: Deliver) -> int:
        """Queue a request and return its number, as the loop does."""
        if self._blocks is not None and self.loop.root:
            request = await self._prepare(request, self._blocks)
        return self.loop.submit(request, deliver)

    async def _prepare(self, request: DecodeRequest, storage: BlockStorage) -> DecodeRequest:
        """Return a request with the names of its blocks; the cache then has what the store has of its prompt.

        Raises what `check_capacity` raises. Every failure of the store leaves the prompt to be computed.
        """
        tokens = request.tokens
        if request.images:  # the names of blocks know tokens alone
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
        async with storage.turn(request.blocks.names[-1]) as is_mine:
            wanted = self._wanted(request)
            if not is_mine or wanted is None:  # Another request may have brought it back meanwhile.
                return
            self.loop.check_capacity(request.tenant)
            fetch = storage.fetch(request.blocks.names[: self._max_blocks], wanted, self._max_block_bytes)
            if fetch is None:
                return
            pieces = await self._result_of(fetch)
            if len(pieces) > wanted and self.loop.adopt(request, pieces):
                storage.counts.read_tokens += len(pieces) * BLOCK_TOKENS

    async def _result_of(self, fetch: Future[list[Cells]]) -> list[Cells]:
        """Wait for a read; one that takes too long is the last for some time."""
        now_s = asyncio.get_running_loop().time
        begun_s = now_s()
        try:
            return await asyncio.wrap_future(fetch)
        except asyncio.CancelledError:
            if now_s() - begun_s >= self._read_s / 2:  # the rest of the time it may have waited for its turn
                self._rests_until_s = now_s() + REST_S
                log.warning("the store of prefixes is slow, and not read for some time", seconds=REST_S)
            raise

    def _wanted(self, request: DecodeRequest) -> int | None:
        """Return the index of the first block that the cache lacks; None if the store can add nothing worth its time.

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
