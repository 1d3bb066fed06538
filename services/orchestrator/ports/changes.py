"""Changes: how those who wait for a write of any orchestrator are woken."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from typing import Protocol

from services.orchestrator.core.model.keys import ExecutionKey, SessionKey


class Watch(Protocol):
    """A wait for changes of one execution or conversation."""

    async def wait(self, poll_s: float, limit_s: float = math.inf) -> None:
        """Wait until it may have changed since the last wait, at most `limit_s` seconds.

        Where writes of other orchestrators are not told, it returns after `poll_s` seconds, else after some seconds at
        the latest. So whoever waits looks again each time.
        """


class Changes(Protocol):
    """The changes of executions and conversations that are committed."""

    def watching(self, key: ExecutionKey | SessionKey) -> AbstractContextManager[Watch]:
        """Watch an execution, or a conversation for the end of a turn. Changes from now on are noticed."""
