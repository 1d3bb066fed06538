"""Change notifications: wake waiters after a write of any orchestrator."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from typing import Protocol

from services.orchestrator.core.model.keys import ExecutionKey, SessionKey


class Watch(Protocol):
    """A watch on changes of one execution or conversation."""

    async def wait(self, poll_s: float, limit_s: float = math.inf) -> None:
        """Wait for a possible change since the last wait, at most `limit_s` seconds.

        If writes of other orchestrators do not notify, it returns after `poll_s` seconds, otherwise after a few
        seconds at most. The caller must therefore check for the change each time.
        """


class Changes(Protocol):
    """The changes of executions and conversations that are committed."""

    def watching(self, key: ExecutionKey | SessionKey) -> AbstractContextManager[Watch]:
        """Watch an execution, or a conversation for the end of a turn. Changes from now on are noticed."""
