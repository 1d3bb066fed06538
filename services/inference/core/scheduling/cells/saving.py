"""Chooses the blocks of KV cells that are stored: those that a later request has found in the cache.

A prompt that comes once is never stored. What was stored is known for some time; a block that is still used then is
offered again, so that a store that drops what is old keeps it, or gets it back.

Invariants:
    1. A block is offered at most once in `RENEW_S`, unless it was forgotten.
    2. At most `MAX_PENDING` blocks wait, and at most `max_known` are known.
    3. Of one prompt's blocks the first is offered last. It is the youngest one then: what goes by age goes from the
       end of a chain, without which its beginning is still of use.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from services.inference.core.scheduling.cells.operations import Save
from services.inference.core.scheduling.cells.stored_blocks import BLOCK_TOKENS, BlockNames

SAVES_PER_STEP = 4  # each takes some milliseconds of the engine's time
MAX_PENDING = 256
MAX_KNOWN = 65_536
RENEW_S = 600.0

# Returns a sequence that holds the first tokens, by their keys, up to a length; None if there is none.
HolderOf = Callable[[Sequence[int], int], int | None]


@dataclass(frozen=True, slots=True)
class _Due:
    name: str
    keys: Sequence[int]
    end: int


class Saving:
    """The blocks to store of one engine, whose blocks have names of one root; with an empty root there are none."""

    def __init__(self, root: bytes = b"", *, block_tokens: int = BLOCK_TOKENS, max_known: int = MAX_KNOWN) -> None:
        self.root = root
        self.block_tokens = block_tokens
        self._max_known = max_known
        self._known: OrderedDict[str, float] = OrderedDict()
        self._pending: deque[_Due] = deque()

    @property
    def has_pending(self) -> bool:
        """Whether blocks wait to be stored."""
        return bool(self._pending)

    def restart(self, root: bytes) -> None:
        """Continue with the blocks of another root."""
        self.root = root
        self._known.clear()
        self._pending.clear()

    def know(self, names: Iterable[str], now_s: float) -> None:
        """Remember blocks that are stored."""
        for name in names:
            self._known[name] = now_s
            self._known.move_to_end(name)
        while len(self._known) > self._max_known:
            self._known.popitem(last=False)

    def forget(self, name: str) -> None:
        """Offer a block again when it is used again, because it was not stored."""
        self._known.pop(name, None)

    def reuse(self, blocks: BlockNames, keys: Sequence[int], cached: int, now_s: float) -> None:
        """Let the blocks of a prompt wait whose tokens were cached; `keys` are those of the first `cached` tokens."""
        if blocks.root != self.root:
            return
        size = self.block_tokens
        names = blocks.names[: cached // size]
        due = [_Due(name, keys, size * (index + 1)) for index, name in enumerate(names) if self._is_due(name, now_s)]
        for one in reversed(due[: MAX_PENDING - len(self._pending)]):
            self.know([one.name], now_s)
            self._pending.append(one)

    def take(self, count: int, holder_of: HolderOf) -> list[Save]:
        """Return at most `count` operations; a block that has left the cache is forgotten."""
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
