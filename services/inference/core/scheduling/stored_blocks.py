"""Names the blocks of KV cells that are stored outside the process, and chooses the blocks to store.

Theory of operation. A block is the cells of BLOCK_TOKENS tokens, at a multiple of that length in a sequence. Cells
depend on all tokens before them. The name of a block is therefore a hash of the name of the block before it, of its
tokens, and of their owner. The chain begins with the root, which is a hash of all facts besides the tokens that
determine an engine's cells. Engines with other roots do not find these blocks. Finding the longest stored prefix needs
no index: names are tried in order until a block is missing.

A block is offered for storing when a later request finds the block in the cache, so a prompt that occurs only once is
never stored. A stored block is known for some time. If the block is still used after that, it is offered again. A
store that drops old blocks thus keeps the block or gets it back.

Invariants:
    1. Two blocks have the same name only if the root, all tokens up to their ends, and the owners of these tokens are
       the same.
    2. A block belongs to all tenants if the operator declared all tokens up to its end shared. Otherwise, it belongs to
       one tenant.
    3. A block is offered at most once in `RENEW_S`, unless `forget` removed it.
    4. At most `MAX_PENDING` blocks are pending, and at most `max_known` names are known.
    5. The first block of a prompt is offered last, so that it is the newest. A store that evicts by age then removes
       the end of a chain first. Without its first blocks, the rest of a chain would be useless.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from services.inference.core.scheduling.operations import Save

BLOCK_TOKENS = 256
_HASH_BYTES = 32
_EVERYBODY = b"\0"
_TENANT = b"\1"
SAVES_PER_STEP = 4  # each save takes some milliseconds of the engine's time
MAX_PENDING = 256
MAX_KNOWN = 65_536
RENEW_S = 600.0

# A function that returns a sequence with the first keys up to a length, or None if no sequence holds them.
HolderOf = Callable[[Sequence[int], int], int | None]


@dataclass(frozen=True, slots=True)
class BlockNames:
    """The names of a prompt's whole blocks, in order, for engines with this root.

    The root is empty if there is no store.
    """

    root: bytes = b""
    names: tuple[str, ...] = ()


NO_BLOCKS = BlockNames()


def root_of(*facts: str) -> bytes:
    """Return the root for the block names of engines that share all of `facts`."""
    return _hash(b"".join(_with_length(fact.encode()) for fact in facts))


def name_blocks(
    root: bytes, tokens: Sequence[int], *, tenant: str, shared_tokens: int, block_tokens: int = BLOCK_TOKENS
) -> BlockNames:
    """Return the names of a prompt's whole blocks. All tenants share its first `shared_tokens` tokens."""
    own = _TENANT + _with_length(tenant.encode())
    packed = np.asarray(tokens, dtype="<i4")
    names = []
    before = root
    for end in range(block_tokens, len(tokens) + 1, block_tokens):
        owner = own
        if end <= shared_tokens:
            owner = _EVERYBODY
        before = _hash(before + owner + packed[end - block_tokens : end].tobytes())
        names.append(before.hex())
    return BlockNames(root, tuple(names))


def _with_length(data: bytes) -> bytes:
    return len(data).to_bytes(4, "little") + data


def _hash(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_HASH_BYTES).digest()


@dataclass(frozen=True, slots=True)
class _Due:
    name: str
    keys: Sequence[int]
    end: int


class Saving:
    """Chooses which blocks of one engine are stored. With an empty root, no blocks are stored."""

    def __init__(self, root: bytes = b"", *, block_tokens: int = BLOCK_TOKENS, max_known: int = MAX_KNOWN) -> None:
        self.root = root
        self.block_tokens = block_tokens
        self._max_known = max_known
        self._known: OrderedDict[str, float] = OrderedDict()
        self._pending: deque[_Due] = deque()

    @property
    def has_pending(self) -> bool:
        """Whether any block is pending."""
        return bool(self._pending)

    def restart(self, root: bytes) -> None:
        """Clear all blocks, and continue with another root."""
        self.root = root
        self._known.clear()
        self._pending.clear()

    def know(self, names: Iterable[str], now_s: float) -> None:
        """Record blocks as stored."""
        for name in names:
            self._known[name] = now_s
            self._known.move_to_end(name)
        while len(self._known) > self._max_known:
            self._known.popitem(last=False)

    def forget(self, name: str) -> None:
        """Remove the record of a block that was not stored. The next use of the block offers it again."""
        self._known.pop(name, None)

    def reuse(self, blocks: BlockNames, keys: Sequence[int], cached: int, now_s: float) -> None:
        """Make the due blocks of a prompt's cached part pending. `keys` are the prompt's first `cached` keys."""
        if blocks.root != self.root:
            return
        size = self.block_tokens
        names = blocks.names[: cached // size]
        due = [_Due(name, keys, size * (index + 1)) for index, name in enumerate(names) if self._is_due(name, now_s)]
        for block in reversed(due[: MAX_PENDING - len(self._pending)]):
            self.know([block.name], now_s)
            self._pending.append(block)

    def take(self, count: int, holder_of: HolderOf) -> list[Save]:
        """Return at most `count` operations for pending blocks. Removes the records of blocks that left the cache."""
        saves: list[Save] = []
        while self._pending and len(saves) < count:
            due = self._pending.popleft()
            holder = holder_of(due.keys, due.end)
            if holder is None:
                self.forget(due.name)
            else:
                saves.append(Save(holder, due.end - self.block_tokens, due.end, due.name))
        return saves

    def _is_due(self, name: str, now_s: float) -> bool:
        stored_s = self._known.get(name)
        return stored_s is None or now_s - stored_s >= RENEW_S
