"""The executions that run in this process."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from pagantic_common.domain.errors import ErrorCode, Overloaded, Unavailable
from services.orchestrator.app.running.execution import Execution
from services.orchestrator.core.model.keys import ExecutionKey

MAX_UNRECORDED = 10_000  # ids; a journal that fails for long must not fill the memory with them


class Registry:
    """Executions by key, up to limits of their number, of each tenant's number (0 is none), and of their bytes.

    A key is taken at once, so that whoever comes next with it waits.
    """

    def __init__(self, max_running: int, max_bytes: int, max_of_tenant: int = 0) -> None:
        self._max_running = max_running
        self._max_of_tenant = max_of_tenant
        self._count_of: Counter[str] = Counter()
        self._max_bytes = max_bytes
        self._running: dict[ExecutionKey, Execution] = {}
        self._used_bytes = 0
        self._others = 0
        self._unrecorded: set[ExecutionKey] = set()

    def __iter__(self) -> Iterator[Execution]:
        return iter(list(self._running.values()))

    def __contains__(self, key: ExecutionKey) -> bool:
        return key in self._running

    @property
    def count(self) -> int:
        """How much runs."""
        return len(self._running) + self._others

    @property
    def has_room_for_others(self) -> bool:
        """Whether so little runs that work which nobody waits for may be added."""
        return 2 * self.count < self._max_running and 2 * self._used_bytes < self._max_bytes

    @property
    def unrecorded(self) -> list[ExecutionKey]:
        """Keys of executions that ended here, and of which the journal does not know that."""
        return sorted(self._unrecorded)

    def mark_recorded(self, keys: Iterable[ExecutionKey]) -> None:
        """Forget keys of executions that the journal knows to have ended here."""
        self._unrecorded.difference_update(keys)

    @contextmanager
    def counted(self, tenant: str, size_bytes: int) -> Iterator[None]:
        """Count work that is not an execution among what runs. Raises Overloaded when as much runs as may."""
        self.check_room(tenant, size_bytes)
        self._others += 1
        self._count_of[tenant] += 1
        try:
            with self.held(size_bytes):
                yield
        finally:
            self._others -= 1
            self._uncount(tenant)

    @contextmanager
    def held(self, size_bytes: int) -> Iterator[None]:
        """Count the bytes of a request that a call holds beside what runs. Raises Overloaded when they are too many."""
        if size_bytes:
            self.check_bytes(size_bytes)
        self._used_bytes += size_bytes
        try:
            yield
        finally:
            self._used_bytes -= size_bytes

    def check_room(self, tenant: str, size_bytes: int = 0) -> None:
        """Raise Overloaded when as much runs as may, in all or of a tenant, or a request of this size is too much."""
        if 0 < self._max_of_tenant <= self._count_of[tenant]:
            text = f"{self._count_of[tenant]} executions of tenant {tenant!r} run, the limit is {self._max_of_tenant}"
            raise Overloaded(text, code=ErrorCode.QUOTA_CONCURRENCY, retry_after_s=1.0)
        if self.count >= self._max_running:
            text = f"{self.count} executions run already, the limit is {self._max_running}"
            raise Overloaded(text, retry_after_s=1.0)
        self.check_bytes(size_bytes)

    def check_bytes(self, size_bytes: int) -> None:
        """Raise Overloaded when a request of this size would be too much."""
        if self._used_bytes and self._used_bytes + size_bytes > self._max_bytes:
            sizes = f"{self._used_bytes} bytes already, and this one {size_bytes}"
            raise Overloaded(f"the requests that run have {sizes}, the limit is {self._max_bytes}", retry_after_s=1.0)

    async def get(self, key: ExecutionKey) -> Execution | None:
        """Return what runs under a key, once it is admitted."""
        while (found := self._running.get(key)) is not None and not found.admission.done():
            await asyncio.wait([found.admission])
        return found

    def add(self, execution: Execution) -> None:
        """Take a key that is free. Raises Overloaded when as much runs as may, Unavailable while the journal fails."""
        if len(self._unrecorded) >= MAX_UNRECORDED:
            raise Unavailable(
                f"{len(self._unrecorded)} executions could not be recorded: the journal must take writes again first",
                code=ErrorCode.ORCHESTRATION_DEPENDENCY_UNAVAILABLE,
                retry_after_s=1.0,
            )
        self.check_room(execution.key.tenant, execution.size_bytes)
        self._running[execution.key] = execution
        self._count_of[execution.key.tenant] += 1
        self._used_bytes += execution.size_bytes
        self._unrecorded.discard(execution.key)

    def resize(self, execution: Execution, size_bytes: int) -> None:
        """Count the bytes of an execution whose request was read after it was added."""
        self._used_bytes += size_bytes - execution.size_bytes
        execution.size_bytes = size_bytes

    def remove(self, execution: Execution, *, is_recorded: bool) -> None:
        """Free the key of an execution, whose end or refusal the journal knows or does not."""
        del self._running[execution.key]
        self._uncount(execution.key.tenant)
        self._used_bytes -= execution.size_bytes
        if not is_recorded:
            self._unrecorded.add(execution.key)
        execution.ended.set()

    def _uncount(self, tenant: str) -> None:
        self._count_of[tenant] -= 1
        if not self._count_of[tenant]:
            del self._count_of[tenant]  # tenants come and go
