"""A queue, in order of arrival, for callers of a service without free capacity."""

from __future__ import annotations

import asyncio
import itertools
import time

from pagantic_common.domain.errors import ErrorCode, Overloaded, PaganticError

PROBE_S = 0.2


class WaitingLine:
    """A queue in which refused callers wait, so that they neither retry constantly nor overtake each other.

    Whenever a call ends, the first caller in the queue is admitted, because the ended call has freed capacity. Every
    PROBE_S another caller is admitted, because the service also has callers outside this queue. An admitted caller that
    is refused again gets a new ticket. Its request may be too large for the available capacity, and the remaining
    callers must not wait for it.
    """

    def __init__(self) -> None:
        self._tickets = itertools.count()
        self._line: dict[int, asyncio.Future[None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._line)

    def take_ticket(self) -> int:
        """Return a ticket for the queue. Lower numbers come first."""
        return next(self._tickets)

    async def wait(self, ticket: int, timeout_s: float) -> bool:
        """Wait for a turn. Returns False if the turn did not come in time."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line[ticket] = turn
        self._probe_later()
        try:
            await asyncio.wait([turn], timeout=timeout_s)
        except asyncio.CancelledError:
            if turn.done():  # Pass the turn to the next caller in the queue.
                self.call_ended()
            raise
        finally:
            self._line.pop(ticket, None)
        return turn.done()

    def call_ended(self) -> None:
        """Admit the first caller in the queue."""
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
    """The slot of a call in a queue, where the call waits for capacity of the service.

    Args:
        refusal: The error code of the service's refusal.
        patience_s: Maximum total time of all the waits of the call, in seconds.
    """

    def __init__(self, line: WaitingLine, refusal: ErrorCode, patience_s: float) -> None:
        self._line = line
        self._refusal = refusal
        self._end_s = time.monotonic() + patience_s
        self._ticket = line.take_ticket()
        self._is_let_through = False

    async def wait(self) -> bool:
        """Wait behind earlier callers. Returns False if the turn did not come in time."""
        self._is_let_through = not self._line or await self._line.wait(self._ticket, self._left_s)
        return self._is_let_through

    @property
    def _left_s(self) -> float:
        return self._end_s - time.monotonic()

    def is_refusal(self, error: PaganticError) -> bool:
        """Return whether an error means that the service has no capacity."""
        return isinstance(error, Overloaded) and error.code is self._refusal

    async def wait_again(self) -> bool:
        """Wait for a turn after a refusal, even in an empty queue. Returns False if the turn did not come in time."""
        self._is_let_through = False
        self._is_let_through = await self._line.wait(self._ticket, self._left_s)
        self._ticket = self._line.take_ticket()
        return self._is_let_through

    def leave(self) -> None:
        """Admit the next caller if this call has freed capacity, because it was admitted and not refused."""
        if self._is_let_through:
            self._line.call_ended()
