"""Callers of a service that had no room for them, in the order in which they came."""

from __future__ import annotations

import asyncio
from collections import deque

PROBE_S = 0.2


class WaitingLine:
    """A line in which refused callers wait, so that they neither ask again all the time nor overtake each other.

    Whenever a call ends, the first of the line is let through, for that call has made room. Every PROBE_S one is let
    through besides, for the service has other callers too.
    """

    def __init__(self) -> None:
        self._line: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._line)

    async def wait(self, timeout_s: float, *, is_first: bool = False) -> bool:
        """Wait for a turn; False when it did not come in time. A caller that was let through and refused is first."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if is_first:
            self._line.appendleft(turn)
        else:
            self._line.append(turn)
        self._probe_later()
        try:
            done, _ = await asyncio.wait([turn], timeout=timeout_s)
        finally:
            if turn in self._line:
                self._line.remove(turn)
        return bool(done)

    def call_ended(self) -> None:
        """Let the first of the line through."""
        while self._line:
            turn = self._line.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def _probe_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PROBE_S, self._probe)

    def _probe(self) -> None:
        self._timer = None
        self.call_ended()
        if self._line:
            self._probe_later()
