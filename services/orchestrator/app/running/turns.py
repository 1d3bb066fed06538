"""Runs the turns of a conversation one after another, even across several orchestrators."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum

from pagantic_common.domain.errors import Aborted
from services.orchestrator.core.model.keys import SessionKey
from services.orchestrator.core.model.request import Mode, Request
from services.orchestrator.ports.journal import Conversations

POLL_S = 0.05
LOOK_S = 1.0
MAX_WAITING = 16  # waiting turns of one session; they count against the registry's limits


class ConcurrentTurns(StrEnum):
    """The policy for a turn that arrives while another turn of its session runs."""

    WAIT = "wait"
    ABORT = "abort"


class _Line:
    """The executions of this process that wait for a session's turn, in order of arrival."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.count = 0


class Turns:
    """The queues of this process for the turns of sessions. Between processes, the journal decides."""

    def __init__(self, journal: Conversations, policy: ConcurrentTurns) -> None:
        self._journal = journal
        self._is_waiting = policy is ConcurrentTurns.WAIT
        self._lines: dict[SessionKey, _Line] = {}

    def join(self, request: Request, *, is_limited: bool = True) -> bool:
        """Queue for the session's turn until `leave` is called. Returns True if a busy session must be refused.

        Raises Aborted if the queue is too long.
        """
        if not _is_turn(request):
            return False
        line = self._lines.setdefault(request.session_key, _Line())
        if is_limited and line.count > MAX_WAITING:
            raise Aborted(
                f"{line.count} turns of session {request.session_id!r} wait already: send this one again later",
                retry_after_s=1.0,
            )
        line.count += 1
        return not self._is_waiting

    def leave(self, request: Request) -> None:
        """Leave the session's queue."""
        if _is_turn(request):
            line = self._lines[request.session_key]
            line.count -= 1
            if line.count == 0:
                del self._lines[request.session_key]

    @asynccontextmanager
    async def turn(self, request: Request, *, is_resumed: bool = False) -> AsyncIterator[None]:
        """Wait for the session's turn, in order of arrival. The turn is released when the execution ends.

        If `is_resumed` is set, an execution that still has the turn does not wait, because the queue waits for it.
        """
        key = request.session_key
        if not _is_turn(request) or (is_resumed and await self._journal.has_turn(key, request.request_id)):
            yield
            return
        async with self._lines[key].lock:
            if not await self._journal.take_turn(key, request.request_id):
                await self._wait_for_other(key, request.request_id)
            yield

    async def _wait_for_other(self, key: SessionKey, request_id: str) -> None:
        """Wait for a turn that another process holds. Polls, as an interrupted turn expires without a signal."""
        with self._journal.watching(key) as session:
            while not await self._journal.take_turn(key, request_id):
                await session.wait(POLL_S, limit_s=LOOK_S)


def _is_turn(request: Request) -> bool:
    return bool(request.session_id) and request.mode is Mode.CHAT
