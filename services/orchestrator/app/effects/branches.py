"""Counts the branches of an execution's work, so that an execution that only waits can be parked.

Theory of operation. The work of an execution is a tree: a plan runs steps concurrently, and a round of tool calls runs
calls concurrently. A branch is either busy or inside a wait. If no branch is busy, the execution may be parked: its
asyncio task is cancelled, and later it continues from the journal as after a crash. So a branch may wait only where a
resume reaches the same wait again.

Invariants:
    1. A branch that has forked is not busy until its own branches have ended.
    2. A branch waits only inside `waiting`. Any other await, such as a retry's pause, counts as busy.
    3. While a branch hands over to another, no branch is busy for a moment. So an execution counts as waiting only
       after nothing has changed for some time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Outstanding:
    """The ids of the open waits, and the earliest time at which one of them ends by itself."""

    wait_ids: frozenset[str]
    wakes_at: datetime


class Branches:
    """The branches of one execution, which starts with one busy branch."""

    def __init__(self) -> None:
        self._busy = 1
        self._waiting: list[tuple[str, datetime]] = []
        self._idle = asyncio.Event()
        self.change_count = 0  # Reveals whether the execution waited without a break.

    @contextmanager
    def forked(self) -> Iterator[None]:
        """Count the current branch as not busy, while it only awaits its child branches."""
        self._add(-1)
        try:
            yield
        finally:
            self._add(1)

    @contextmanager
    def branch(self) -> Iterator[None]:
        """Count the enclosed work as a busy branch."""
        self._add(1)
        try:
            yield
        finally:
            self._add(-1)

    @contextmanager
    def waiting(self, wait_id: str, until: datetime) -> Iterator[None]:
        """Count the current branch as waiting. The wait ends at `until` at the latest."""
        wait = wait_id, until
        self._waiting.append(wait)
        self._add(-1)
        try:
            yield
        finally:
            self._waiting.remove(wait)
            self._add(1)

    @property
    def outstanding(self) -> Outstanding | None:
        """The open waits if the execution only waits; None if a branch is busy."""
        if self._busy or not self._waiting:
            return None
        wait_ids, times = zip(*self._waiting, strict=True)
        return Outstanding(frozenset(wait_ids), min(times))

    async def idle(self) -> None:
        """Return once the execution only waits."""
        await self._idle.wait()

    def _add(self, count: int) -> None:
        self._busy += count
        self.change_count += 1
        if self.outstanding is None:
            self._idle.clear()
        else:
            self._idle.set()
