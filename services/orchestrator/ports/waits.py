"""Storage of the waits of executions, and of the signals that end them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from services.orchestrator.core.execution.wait import Resolution, Signal, Wait, WaitKind
from services.orchestrator.core.model.keys import ExecutionKey
from services.orchestrator.ports.changes import Changes
from services.orchestrator.ports.page import Page


class WaitStore(Changes, Protocol):
    """Stores waits by execution and id, and signals by execution and id.

    Both are deleted with the execution, and when the execution runs again.
    """

    async def begin_wait(self, key: ExecutionKey, wait: Wait) -> Wait:
        """Store a wait and return it, or return the stored wait, with its end, if it is the same wait.

        A different stored wait with the same id is replaced.
        """

    async def get_wait(self, key: ExecutionKey, wait_id: str) -> Wait:
        """Return a wait. Raises NotFound if it does not exist."""

    async def resolve_wait(self, key: ExecutionKey, wait_id: str, resolution: Resolution) -> Wait:
        """End a wait unless it has already ended, and return it with its end. Makes a parked execution due.

        Raises NotFound if the wait does not exist, and PreconditionFailed if the execution has ended.
        """

    async def list_waits(
        self, *, tenant: str, limit: int, after: str, request_id: str, kinds: Collection[WaitKind]
    ) -> Page[Wait]:
        """Return the open waits of these kinds in a tenant's executions, oldest first.

        If `request_id` is not empty, only waits of that execution are returned. A page may be short if its waits are
        large. `after` is the token from the previous page. Raises InvalidRequest if the token is invalid.
        """

    async def first_wait(self, key: ExecutionKey, name: str) -> Wait | None:
        """Return the open wait that takes the next signal of a name, which has the smallest id, or None."""

    async def add_signal(self, key: ExecutionKey, signal: Signal) -> None:
        """Keep a signal, unless it is already stored. Makes a parked execution due if it waits for the signal.

        Raises NotFound if the execution does not exist, PreconditionFailed if it has ended, Conflict if another signal
        has the id, and Overloaded if too many signals are kept.
        """

    async def signal_digest(self, key: ExecutionKey, signal_id: str) -> bytes | None:
        """Return the digest of a signal that was sent, or None."""

    async def next_signal(self, key: ExecutionKey, name: str) -> Signal | None:
        """Return the earliest kept signal with a name, or None."""

    async def take_signal(self, key: ExecutionKey, wait_id: str, resolution: Resolution) -> Wait:
        """End an open wait with the kept signal that the resolution names, and return the wait.

        The wait stays unchanged if the signal is not kept, or if the wait is not the `first_wait` of its name.
        """

    async def drop_signal(self, key: ExecutionKey, wait_id: str, signal_id: str) -> bool:
        """Keep a signal no longer, under the conditions of `take_signal`. Return whether it was dropped."""
