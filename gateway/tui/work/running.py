"""Follows and stops an answer that is being written."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from typing import Final

from gateway.tui.work.answer import Answer
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.client import AsyncClient
from pagantic_common.domain.errors import NotFound, PaganticError

CANCEL_TRIES: Final = 10
CANCEL_WAIT_S: Final = 0.2


class Running:
    """Follows an answer to its end.

    Args:
    client: The client of the orchestrator.
    answer: The answer so far.
    request: The request to send, or None if its execution is already running.
    """

    def __init__(self, client: AsyncClient, answer: Answer, request: execution_pb2.SystemRequest | None) -> None:
        self.answer = answer
        self.is_lost = False
        self.is_stopping = False
        self._client = client
        self._request = request
        self._began_s = time.monotonic()

    async def follow(self) -> PaganticError | None:
        """Follow the answer. Return the error if the answer is lost, or None if the execution ended or failed."""
        events = self._client.follow_to_end(
            self._request or self.answer.request_id, after_sequence=self.answer.sequence, on_lost=self._note_lost
        )
        try:
            async with aclosing(events):
                async for event in events:
                    self.is_lost = False
                    self.answer.take(event)
        except PaganticError as error:
            return error
        return None

    def _note_lost(self, _failure: PaganticError) -> None:
        self.is_lost = True

    async def stop(self) -> PaganticError | None:
        """Cancel the execution, and return the error if it cannot be cancelled."""
        self.is_stopping = True
        failure: PaganticError | None = None
        for _ in range(CANCEL_TRIES):
            try:
                await self._client.cancel(self.answer.request_id)
            except NotFound as error:
                # The request has not arrived yet.
                failure = error
                await asyncio.sleep(CANCEL_WAIT_S)
            except PaganticError as error:
                failure = error
                break
            else:
                return None
        self.is_stopping = False
        return failure

    def described(self) -> tuple[str, bool]:
        """Return the current activity, and whether it needs the user's attention."""
        if self.is_lost:
            return "connection lost, trying again…", True
        if self.is_stopping:
            return "stopping…", False
        if self.answer.waiting:
            return "a call waits: Ctrl+P decides", True
        return f"writing… {time.monotonic() - self._began_s:.0f} s, Escape stops", False
