"""Counts the branches of an execution's work, so that an execution that only waits can be parked.

Theory of operation. The work of an execution is a tree: a plan runs steps at the same time, and a round of tool calls
runs calls. A branch is either busy or waits for a person. If no branch is busy, the execution may be parked: its task
is cancelled, and later it continues from the journal as after a crash. So a branch may only wait where a resume comes
to the same wait again.

Invariants:
    1. A branch that has forked is not busy until its own branches have ended.
    2. A branch waits only inside `waiting`. Any other await, such as a retry's pause, counts as busy.
    3. For a moment no branch is busy while a branch hands over to another. So an execution only waits if nothing has
       changed for some time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Outstanding:
    """The calls that wait for an approval, and the earliest time at which one of them expires."""

    call_ids: frozenset[str]
    wakes_at: datetime


class Waits:
    """The branches of one execution, which starts with one busy branch."""

    def __init__(self) -> None:
        self._busy = 1
        self._waiting: list[tuple[str, datetime]] = []
        self._idle = asyncio.Event()
        self.change_count = 0  # shows whether the execution waited without a break

    @contextmanager
    def forked(self) -> Iterator[None]:
        """Count the current branch as not busy, while it only awaits branches of its own."""
        self._add(-1)
        try:
            yield
        finally:
            self._add(1)

    @contextmanager
    def branch(self) -> Iterator[None]:
        """Count the work inside as a busy branch."""
        self._add(1)
        try:
            yield
        finally:
            self._add(-1)

    @contextmanager
    def waiting(self, call_id: str, until: datetime) -> Iterator[None]:
        """Count the current branch as waiting for the approval of a call, until a time at most."""
        wait = call_id, until
        self._waiting.append(wait)
        self._add(-1)
        try:
            yield
        finally:
            self._waiting.remove(wait)
            self._add(1)

    @property
    def outstanding(self) -> Outstanding | None:
        """The waits of an execution that only waits, or None if a branch is busy."""
        if self._busy or not self._waiting:
            return None
        call_ids, times = zip(*self._waiting, strict=True)
        return Outstanding(frozenset(call_ids), min(times))

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
