"""A bounded queue shared by owners, who are served in turn. Each owner keeps its share when the queue is full."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Generic, TypeVar

ItemT = TypeVar("ItemT")


class FairQueue(Generic[ItemT]):
    """Queues items by owner: first in, first out for each owner. Owners take turns, in order of arrival.

    Source: round robin, as in J. Nagle, "On packet switches with infinite storage", RFC 970, 1985.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._lines: OrderedDict[str | None, deque[ItemT]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def add(self, owner: str | None, item: ItemT) -> ItemT | None:
        """Add an item, and return the item that does not fit, or None if all items fit.

        In a full queue, the newest item of the owner with the most items does not fit. This may be the added item.
        """
        self._lines.setdefault(owner, deque()).append(item)
        if len(self) <= self._capacity:
            return None
        longest = max(len(line) for line in self._lines.values())
        if len(self._lines[owner]) == longest:  # In a tie, the added item does not fit.
            return self._pop_newest(owner)
        return self._pop_newest(next(name for name, line in self._lines.items() if len(line) == longest))

    def take(self, may_take: Callable[[str | None], bool] = lambda _owner: True) -> ItemT | None:
        """Return the next item, or None if no owner with items may take an item. The turn passes to the next owner.

        An owner that may not take an item keeps its turn.
        """
        for owner in self._lines:
            if may_take(owner):
                break
        else:
            return None
        line = self._lines.pop(owner)
        item = line.popleft()
        if line:
            self._lines[owner] = line
        return item

    def remove(self, owner: str | None, item: ItemT) -> None:
        """Remove an item that callers no longer wait for. A missing item is not an error."""
        line = self._lines.get(owner)
        if line is None or item not in line:
            return
        line.remove(item)
        if not line:
            del self._lines[owner]

    def _pop_newest(self, owner: str | None) -> ItemT:
        line = self._lines[owner]
        item = line.pop()
        if not line:
            del self._lines[owner]
        return item
