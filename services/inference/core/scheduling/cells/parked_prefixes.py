"""Tokens whose KV cells were copied from the cache to host memory, to be copied back instead of computed again.

Copying takes milliseconds where computing takes seconds, and cells that stay in the cache slow every step.

Invariants:
    1. No entry is a prefix of another one.
    2. All entries together have at most `capacity_tokens` tokens.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class ParkedPrefixes:
    """An index of entries by their tokens; the least recently used are dropped first."""

    def __init__(self, capacity_tokens: int) -> None:
        self.parked_tokens = 0
        self.capacity_tokens = capacity_tokens
        self._entries: OrderedDict[int, tuple[int, ...]] = OrderedDict()
        self._keys = 0

    @property
    def entries(self) -> list[tuple[int, ...]]:
        """The tokens of each entry."""
        return list(self._entries.values())

    def size(self, key: int) -> int:
        """Return the number of tokens of an entry."""
        return len(self._entries[key])

    def find(self, tokens: Sequence[int], limit: int) -> tuple[int, int] | None:
        """Return the key of the entry that shares the longest prefix of the first `limit` tokens, and its length."""
        best: tuple[int, int] | None = None
        for key, entry in self._entries.items():
            length = common_length(entry, tokens, limit)
            if length and (best is None or length >= best[1]):
                best = (key, length)
        if best is not None:
            self._entries.move_to_end(best[0])
        return best

    def length(self, tokens: Sequence[int], limit: int) -> int:
        """Return how many of the first `limit` tokens an entry has; this does not count as a use of it."""
        return max((common_length(entry, tokens, limit) for entry in self._entries.values()), default=0)

    def covers(self, tokens: Sequence[int]) -> bool:
        """Tell whether an entry begins with all these tokens."""
        return any(common_length(entry, tokens, len(tokens)) == len(tokens) for entry in self._entries.values())

    def add(self, tokens: Sequence[int]) -> tuple[int | None, list[int]]:
        """Add an entry; return its key, None if it is too large, and the keys of the entries dropped for it."""
        if len(tokens) > self.capacity_tokens:
            return None, []
        dropped = [
            key for key, entry in self._entries.items() if common_length(entry, tokens, len(entry)) == len(entry)
        ]
        for key in dropped:
            self._drop(key)
        while self.parked_tokens + len(tokens) > self.capacity_tokens:
            oldest = next(iter(self._entries))
            dropped.append(oldest)
            self._drop(oldest)
        self._keys += 1
        self._entries[self._keys] = tuple(tokens)
        self.parked_tokens += len(tokens)
        return self._keys, dropped

    def clear(self) -> list[int]:
        """Forget all entries and return their keys."""
        keys = list(self._entries)
        for key in keys:
            self._drop(key)
        return keys

    def _drop(self, key: int) -> None:
        self.parked_tokens -= len(self._entries.pop(key))


def common_length(first: Sequence[int], second: Sequence[int], limit: int) -> int:
    """Return the length of the common prefix, at most `limit`."""
    end = min(len(first), len(second), limit)
    low = 0
    step = 16
    while low < end:
        high = min(low + step, end)
        if tuple(first[low:high]) != tuple(second[low:high]):
            return next(index for index in range(low, high) if first[index] != second[index])
        low, step = high, step * 2
    return end
