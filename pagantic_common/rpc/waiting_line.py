"""Waiting callers of a service without room for them, in order of arrival."""

from __future__ import annotations

import asyncio
import itertools
import time

from pagantic_common.domain.errors import ErrorCode, Overloaded, PaganticError

PROBE_S = 0.2


class WaitingLine:
    """A line in which refused callers wait, so that they neither retry constantly nor overtake each other.

    Whenever a call ends, the first caller in the line is let through, because that call has freed room. Every PROBE_S
    another caller is let through, because the service has other callers too. A caller that is let through and refused
    again gets a new ticket: it may lack room for its own request only, and the others must not wait for that.
    """

    def __init__(self) -> None:
        self._tickets = itertools.count()
        self._line: dict[int, asyncio.Future[None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._line)

    def take_ticket(self) -> int:
        """Return a place in the line: those with lower numbers come first."""
        return next(self._tickets)

    async def wait(self, ticket: int, timeout_s: float) -> bool:
        """Wait for a turn; False when it did not come in time."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line[ticket] = turn
        self._probe_later()
        try:
            await asyncio.wait([turn], timeout=timeout_s)
        except asyncio.CancelledError:
            if turn.done():  # the next in line takes the turn
                self.call_ended()
            raise
        finally:
            self._line.pop(ticket, None)
        return turn.done()

    def call_ended(self) -> None:
        """Let the first of the line through."""
        if self._line:
            self._line.pop(min(self._line)).set_result(None)

    def _probe_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PROBE_S, self._probe)

    def _probe(self) -> None:
        self._timer = None
        self.call_ended()
        if self._line:
            self._probe_later()


class Place:
    """The place of a call in a line, where it waits while the service has no room for it.

    Args:
        refusal: The code with which the service refuses the call.
        patience_s: Longest time of all its waits together.
    """

    def __init__(self, line: WaitingLine, refusal: ErrorCode, patience_s: float) -> None:
        self._line = line
        self._refusal = refusal
        self._end_s = time.monotonic() + patience_s
        self._ticket = line.take_ticket()
        self._is_let_through = False

    async def wait(self) -> bool:
        """Wait behind earlier callers; return False if the turn did not come in time."""
        self._is_let_through = not self._line or await self._line.wait(self._ticket, self._left_s)
        return self._is_let_through

    @property
    def _left_s(self) -> float:
        return self._end_s - time.monotonic()

    def is_refusal(self, error: PaganticError) -> bool:
        """Whether an error says that there is no room."""
        return isinstance(error, Overloaded) and error.code is self._refusal

    async def wait_again(self) -> bool:
        """Wait for a turn after a refusal, even in an empty line; return False if it did not come in time."""
        self._is_let_through = False
        self._is_let_through = await self._line.wait(self._ticket, self._left_s)
        self._ticket = self._line.take_ticket()
        return self._is_let_through

    def leave(self) -> None:
        """Let the next through where the call has made room: it was let through, and not refused."""
        if self._is_let_through:
            self._line.call_ended()
