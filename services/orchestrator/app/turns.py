"""Turns of one conversation follow each other, also when several orchestrators take them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum

from services.orchestrator.core.request import Mode, Request
from services.orchestrator.ports.journal import Journal

POLL_S = 0.05


class ConcurrentTurns(StrEnum):
    """What a turn does that comes while another of its session runs."""

    WAIT = "wait"
    ABORT = "abort"


class Turns:
    """Who of this process waits for the turn of which session; among processes the journal decides."""

    def __init__(self, journal: Journal, policy: ConcurrentTurns) -> None:
        self._journal = journal
        self._is_waiting = policy is ConcurrentTurns.WAIT
        self._locks: dict[str, asyncio.Lock] = {}

    def is_taken_at_admission(self, request: Request) -> bool:
        """Whether a request is refused at admission when another turn of its session runs."""
        return not self._is_waiting and _is_turn(request)

    @asynccontextmanager
    async def turn(self, request: Request) -> AsyncIterator[None]:
        """Wait for the session's turn, in the order of coming; the end of the execution gives it back."""
        if not _is_turn(request):
            yield
            return
        session_id = request.session_id
        lock = self._locks.setdefault(session_id, asyncio.Lock())
        try:
            async with lock:
                # Another process may have it, and tells nobody when it gives it back.
                while not await self._journal.take_turn(session_id, request.request_id):  # noqa: ASYNC110
                    await asyncio.sleep(POLL_S)
                yield
        finally:
            if not lock.locked():
                self._locks.pop(session_id, None)


def _is_turn(request: Request) -> bool:
    return bool(request.session_id) and request.mode is Mode.CHAT
