"""Signals of changes, which wake waiters after a write by any orchestrator."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from typing import Protocol

from services.orchestrator.core.model.keys import ExecutionKey, SessionKey


class Watch(Protocol):
    """A watch for changes of one execution or conversation."""

    async def wait(self, poll_s: float, limit_s: float = math.inf) -> None:
        """Wait for a possible change since the last wait, for at most `limit_s` seconds.

        If other orchestrators do not signal their writes, the method returns after `poll_s` seconds. Otherwise it
        returns after a few seconds at most. So the caller must check for the change after each wait.
        """


class Changes(Protocol):
    """Detects the committed changes of executions and conversations."""

    def watching(self, key: ExecutionKey | SessionKey) -> AbstractContextManager[Watch]:
        """Watch an execution, or a conversation for the end of a turn. Detects changes from now on."""
