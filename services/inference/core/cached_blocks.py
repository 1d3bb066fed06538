"""Logs the cached blocks of an owner's requests as numbered batches of changes that can be replayed.

Theory of operation. A block is BLOCK_TOKENS tokens at a multiple of that length in a sequence. The block before it is
its parent. Blocks have numbers instead of hashes, so that two blocks never collide. `take` compares the current cache
with the cache at the previous call, and appends the changes to a bounded history. A reader requests the batches from a
sequence number on. If the history no longer contains that number, the reader gets a snapshot of all blocks instead.

Invariants:
    1. Replaying a snapshot and every batch after it yields the blocks of the last `take`.
    2. A parent comes before its children in a batch and in a snapshot, and has a lower number.
    3. Sequence numbers have no gaps. The parts of a snapshot end with the number of the last batch before them.
    4. Only tokens that the owner sent are reported. Shared tokens are reported if the owner's tokens follow them.
    5. The history names at most MAX_HISTORY blocks and batches. A batch or a part names at most MAX_BATCH_BLOCKS
       blocks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from services.inference.core.scheduling.cache_owners import owner_of, tokens_of
from services.inference.core.scheduling.prefix_tree import CachedRun

BLOCK_TOKENS = 16  # the default of gateways for vLLM
MAX_BATCH_BLOCKS = 1024
MAX_HISTORY = 8192
_NO_BLOCK = 0
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CachedBlock:
    """A block of tokens.

    `parent` is the number of the block before it, or 0 at the beginning of a sequence.
    """

    number: int
    parent: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """The index of a batch in a snapshot of `count` batches and `blocks` blocks."""

    index: int
    count: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of changes, applied in this order: clear all if `is_cleared`, remove blocks, store blocks.

    Attributes:
        sequence: The number of the batch.
        time_s: The time when the change was noticed, in seconds since 1970.
        snapshot: The batch's position in a snapshot, if it belongs to a snapshot.
    """

    sequence: int
    time_s: float
    stored: tuple[CachedBlock, ...] = ()
    removed: tuple[int, ...] = ()
    is_cleared: bool = False
    snapshot: SnapshotPart | None = None

    @property
    def size(self) -> int:
        """The size of this batch in the history, which has a maximum size."""
        return 1 + len(self.stored) + len(self.removed)


class BlockLog:
    """The blocks of one owner and the history of their changes.

    Args:
        sequence: The number before the first batch, which is at least the number of parts of any snapshot. It should
            exceed all numbers of an earlier log, so that no reader mistakes this log for a continuation of that log.
        max_history: The maximum size of the history.
    """

    def __init__(self, sequence: int, max_history: int = MAX_HISTORY) -> None:
        self.sequence = sequence
        self._max_history = max_history
        self._history: deque[Batch] = deque()
        self._history_size = 0
        self._blocks: dict[tuple[int, tuple[int, ...]], CachedBlock] = {}
        self._numbers = _NO_BLOCK

    @property
    def blocks(self) -> list[CachedBlock]:
        """All blocks, ordered by number."""
        return sorted(self._blocks.values(), key=lambda block: block.number)

    def take(self, runs: Sequence[CachedRun], owner: int, time_s: float) -> None:
        """Append the changes since the last call, given all tokens that are cached now."""
        before, last_number = self._blocks, self._numbers
        self._blocks = self._find(runs, owner)
        removed = sorted((block.number for key, block in before.items() if key not in self._blocks), reverse=True)
        if removed and not self._blocks:
            self._append(time_s, is_cleared=True)
            return
        for numbers in _parts(removed):
            self._append(time_s, removed=numbers)
        for blocks in _parts(block for block in self._blocks.values() if block.number > last_number):
            self._append(time_s, stored=blocks)

    def since(self, sequence: int, time_s: float) -> Sequence[Batch]:
        """Return the batches from a sequence number on, or a current snapshot if any of them has left the history."""
        if not self.sequence - len(self._history) < sequence <= self.sequence + 1:
            return self._snapshot(time_s)
        return [batch for batch in self._history if batch.sequence >= sequence]

    def _append(
        self,
        time_s: float,
        *,
        stored: tuple[CachedBlock, ...] = (),
        removed: tuple[int, ...] = (),
        is_cleared: bool = False,
    ) -> None:
        self.sequence += 1
        batch = Batch(self.sequence, time_s, stored, removed, is_cleared)
        self._history.append(batch)
        self._history_size += batch.size
        while self._history_size > self._max_history:
            self._history_size -= self._history.popleft().size

    def _snapshot(self, time_s: float) -> list[Batch]:
        blocks = self.blocks
        parts = list(_parts(blocks)) or [()]
        first = self.sequence - len(parts) + 1
        return [
            Batch(
                first + index,
                time_s,
                stored=part,
                is_cleared=index == 0,
                snapshot=SnapshotPart(index, len(parts), len(blocks)),
            )
            for index, part in enumerate(parts)
        ]

    def _find(self, runs: Sequence[CachedRun], owner: int) -> dict[tuple[int, tuple[int, ...]], CachedBlock]:
        blocks: dict[tuple[int, tuple[int, ...]], CachedBlock] = {}
        ends: list[tuple[int, tuple[int, ...]]] = []  # each run's last whole block, and the keys after it
        for run, is_own in zip(runs, _are_own(runs, owner), strict=True):
            parent, keys = _NO_BLOCK, run.tokens
            if run.parent >= 0:
                parent, rest = ends[run.parent]
                keys = rest + keys
            if is_own:
                for block in self._blocks_of(parent, keys, blocks):
                    parent = block.number
            ends.append((parent, keys[len(keys) - len(keys) % BLOCK_TOKENS :]))
        return blocks

    def _blocks_of(
        self, parent: int, keys: tuple[int, ...], blocks: dict[tuple[int, tuple[int, ...]], CachedBlock]
    ) -> Iterator[CachedBlock]:
        """Yield the whole blocks that the keys form after a parent block, and add them to `blocks`.

        New blocks get new numbers.
        """
        for start in range(0, len(keys) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
            key = (parent, keys[start : start + BLOCK_TOKENS])
            block = blocks.get(key) or self._blocks.get(key)
            if block is None:
                self._numbers += 1
                block = CachedBlock(self._numbers, parent, tokens_of(key[1]))
            blocks[key] = block
            parent = block.number
            yield block


def _are_own(runs: Sequence[CachedRun], owner: int) -> list[bool]:
    """Return for each run whether the owner sent it.

    The owner sent a run if the run, or a run that continues it, ends with one of the owner's tokens. In a sequence,
    shared tokens come first, then tokens of one owner.
    """
    own = [owner_of(run.tokens[-1]) == owner for run in runs]
    for index in range(len(runs) - 1, -1, -1):
        if own[index] and runs[index].parent >= 0:
            own[runs[index].parent] = True
    return own


def _parts(items: Iterable[T]) -> Iterator[tuple[T, ...]]:
    """Yield the items in parts that fit into a batch."""
    source = iter(items)
    while part := tuple(islice(source, MAX_BATCH_BLOCKS)):
        yield part
