"""Tracks running requests by caller-given ids, so that callers can abort their requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager

from pagantic_common.domain.errors import Conflict, InvalidRequest
from pagantic_common.telemetry.scope import current_principal
from services.inference.core.generation import Event

MAX_ID_BYTES = 256
MAX_ABORTED = 1024


class RunningRequest:
    """A request that can be aborted while it waits for its next event."""

    def __init__(self) -> None:
        self.is_aborted = False
        self._limit: asyncio.Timeout | None = None

    def abort(self) -> None:
        """End the events and cancel the wait for the next event."""
        if self.is_aborted:
            return
        self.is_aborted = True
        if self._limit is not None:
            self._limit.reschedule(asyncio.get_running_loop().time())

    async def next_of(self, events: AsyncGenerator[Event, None]) -> Event | None:
        """Return the next event, or None at the end or once the request is aborted."""
        if self.is_aborted:
            return None
        try:
            async with asyncio.timeout(None) as self._limit:
                return await anext(events, None)
        except TimeoutError:
            if not self.is_aborted:
                raise
            return None
        finally:
            self._limit = None


class RunningRequests:
    """The running requests of all callers. A caller can abort only requests of its own tenant."""

    def __init__(self) -> None:
        self._requests: dict[tuple[str, str], RunningRequest] = {}

    def __len__(self) -> int:
        return len(self._requests)

    @contextmanager
    def running(self, request_id: str) -> Iterator[RunningRequest]:
        """Register a request of the current caller inside the block.

        Raises InvalidRequest if the id is empty or too long, and Conflict if a running request has the same id.
        """
        if not 0 < len(request_id.encode()) <= MAX_ID_BYTES:
            raise InvalidRequest(
                f"request_id has {len(request_id.encode())} bytes: it must have between 1 and {MAX_ID_BYTES}"
            )
        key = (current_principal().tenant, request_id)
        if key in self._requests:
            raise Conflict(f"request_id {request_id!r} runs already: send another one")
        request = self._requests[key] = RunningRequest()
        try:
            yield request
        finally:
            del self._requests[key]

    def abort(self, request_ids: Sequence[str]) -> None:
        """Abort requests of the current caller. Unknown ids are ignored, because their requests may have ended.

        Raises InvalidRequest if there are too many ids.
        """
        if len(request_ids) > MAX_ABORTED:
            raise InvalidRequest(f"request_ids has {len(request_ids)} ids: send at most {MAX_ABORTED}")
        for request_id in request_ids:
            request = self._requests.get((current_principal().tenant, request_id))
            if request is not None:
                request.abort()
