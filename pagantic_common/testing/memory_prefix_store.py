"""A store of KV cells in memory, which deletes the least recently used blocks, like the real store."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any


class MemoryPrefixStore:
    """Blocks by name, together at most `max_bytes` large.

    Attributes:
        reads: The names that were read, in order.
    """

    def __init__(self, max_bytes: int = 1 << 30) -> None:
        self.blocks: OrderedDict[str, Any] = OrderedDict()
        self.reads: list[str] = []
        self._max_bytes = max_bytes

    def read(self, name: str, max_bytes: int) -> Any:
        """Return a block; None if it is missing, or larger than `max_bytes`."""
        self.reads.append(name)
        cells = self.blocks.get(name)
        if cells is None or cells.size > max_bytes:
            self.blocks.pop(name, None)
            return None
        self.blocks.move_to_end(name)
        return cells

    def write(self, name: str, cells: Any) -> bool:
        """Keep a block; False if it is too large."""
        if cells.size > self._max_bytes:
            return False
        self.blocks[name] = cells
        self.blocks.move_to_end(name)
        while sum(kept.size for kept in self.blocks.values()) > self._max_bytes:
            self.blocks.popitem(last=False)
        return True

    def touch(self, name: str) -> bool:
        """Note the use of a block; False if it is not there."""
        if name not in self.blocks:
            return False
        self.blocks.move_to_end(name)
        return True
