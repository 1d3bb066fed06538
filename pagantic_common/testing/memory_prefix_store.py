"""An in-memory store of KV cells, which deletes the least recently used blocks as the real store does."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any


class MemoryPrefixStore:
    """A store of named blocks, of at most `max_bytes` in total.

    Attributes:
        reads: The names that were read, in order.
    """

    def __init__(self, max_bytes: int = 1 << 30) -> None:
        self.blocks: OrderedDict[str, Any] = OrderedDict()
        self.reads: list[str] = []
        self._max_bytes = max_bytes

    def read(self, name: str, max_bytes: int) -> Any:
        """Return a block, or None if it is missing or larger than `max_bytes`."""
        self.reads.append(name)
        cells = self.blocks.get(name)
        if cells is None or cells.size > max_bytes:
            self.blocks.pop(name, None)
            return None
        self.blocks.move_to_end(name)
        return cells

    def write(self, name: str, cells: Any) -> bool:
        """Store a block. Returns False if it is too large."""
        if cells.size > self._max_bytes:
            return False
        self.blocks[name] = cells
        self.blocks.move_to_end(name)
        while sum(kept.size for kept in self.blocks.values()) > self._max_bytes:
            self.blocks.popitem(last=False)
        return True

    def touch(self, name: str) -> bool:
        """Record the use of a block. Returns False if it is missing."""
        if name not in self.blocks:
            return False
        self.blocks.move_to_end(name)
        return True
