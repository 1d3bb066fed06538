"""The executions that run in this process."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from pagantic_common.domain.calls.shares import TENANT_WEIGHT, left_of_share
from pagantic_common.domain.errors import ErrorCode, Overloaded, Unavailable
from services.orchestrator.app.running.execution import Execution
from services.orchestrator.core.model.keys import Account, ExecutionKey

MAX_UNRECORDED = 10_000  # number of ids; bounds memory during a long journal failure


class Registry:
    """Executions by key, limited in number and bytes: in total, per tenant and per subject.

    A limit of 0 means no limit. A key is reserved at once, so that later requests with the same key wait. With multiple
    tenants, a tenant without a limit has at most TENANT_WEIGHT times the free capacity, as in `Shares`.
    """

    def __init__(
        self,
        max_running: int,
        max_bytes: int,
        *,
        max_of_tenant: int = 0,
        max_of_subject: int = 0,
        max_bytes_of_tenant: int = 0,
        has_tenants: bool = False,
    ) -> None:
        self._has_tenants = has_tenants
        self._max_running = max_running
        self._max_of_tenant = max_of_tenant
        self._max_of_subject = max_of_subject
        self._count_of: Counter[Account] = Counter()
        self._max_bytes = max_bytes
        self._max_bytes_of_tenant = max_bytes_of_tenant
        self._bytes_of: Counter[str] = Counter()
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
        """Number of executions and other work that run now."""
        return len(self._running) + self._others

    @property
    def has_room_for_others(self) -> bool:
        """Whether less than half of the capacity is used, so that deferrable work may start."""
        return 2 * self.count < self._max_running and 2 * self._used_bytes < self._max_bytes

    @property
    def unrecorded(self) -> list[ExecutionKey]:
        """Keys of executions that ended here without a recorded end in the journal."""
        return sorted(self._unrecorded)

    def mark_recorded(self, keys: Iterable[ExecutionKey]) -> None:
        """Drop the keys of executions whose end is now recorded in the journal."""
        self._unrecorded.difference_update(keys)

    @contextmanager
    def counted(self, account: Account, size_bytes: int) -> Iterator[None]:
        """Count work that is not an execution against the limits. Raises Overloaded if a limit is reached."""
        self.check_room(account, size_bytes)
        self._others += 1
        self._count_of.update(account.payers)
        try:
            with self.held(account, size_bytes):
                yield
        finally:
            self._others -= 1
            self._uncount(account)

    @contextmanager
    def held(self, account: Account, size_bytes: int) -> Iterator[None]:
        """Count the bytes of a request that is held outside the executions. Raises Overloaded at a limit."""
        if size_bytes:
            self.check_bytes(account, size_bytes)
        self._hold(account, size_bytes)
        try:
            yield
        finally:
            self._hold(account, -size_bytes)

    def check_room(self, account: Account, size_bytes: int = 0) -> None:
        """Raise Overloaded if a limit on running work, in total or of an account, leaves no room for the request."""
        for payer in account.payers:
            limit = self._max_of_subject if payer.subject else self._max_of_tenant
            if 0 < limit <= self._count_of[payer]:
                text = f"{self._count_of[payer]} executions of {payer} run, the limit is {limit}"
                raise Overloaded(text, code=ErrorCode.QUOTA_CONCURRENCY, retry_after_s=1.0)
        of_tenant = self._count_of[Account(account.tenant)]
        if not self._max_of_tenant and self._is_beyond_share(of_tenant, 1, self._max_running - self.count):
            text = f"{of_tenant} executions of {Account(account.tenant)} run, which is its share of {self._max_running}"
            raise Overloaded(text, code=ErrorCode.QUOTA_CONCURRENCY, retry_after_s=1.0)
        if self.count >= self._max_running:
            text = f"{self.count} executions run already, the limit is {self._max_running}"
            raise Overloaded(text, retry_after_s=1.0)
        self.check_bytes(account, size_bytes)

    def check_bytes(self, account: Account, size_bytes: int) -> None:
        """Raise Overloaded if a request of this size would exceed the limit on bytes, in total or of a tenant."""
        of_tenant, limit = self._bytes_of[account.tenant], self._max_bytes_of_tenant
        if 0 < limit < of_tenant + size_bytes and of_tenant:
            sizes = f"{of_tenant} bytes already, and this one {size_bytes}"
            text = f"the requests of tenant {account.tenant!r} that run have {sizes}, the limit is {limit}"
            raise Overloaded(text, code=ErrorCode.QUOTA_CONCURRENCY, retry_after_s=1.0)
        if not limit and self._is_beyond_share(of_tenant, size_bytes, self._max_bytes - self._used_bytes):
            text = f"the requests of tenant {account.tenant!r} that run have {of_tenant} bytes already"
            text += f", which is its share of {self._max_bytes}"
            raise Overloaded(text, code=ErrorCode.QUOTA_CONCURRENCY, retry_after_s=1.0)
        if self._used_bytes and self._used_bytes + size_bytes > self._max_bytes:
            sizes = f"{self._used_bytes} bytes already, and this one {size_bytes}"
            raise Overloaded(f"the requests that run have {sizes}, the limit is {self._max_bytes}", retry_after_s=1.0)

    def _is_beyond_share(self, held: int, amount: int, free: int) -> bool:
        """Return whether a further amount would exceed the share of a tenant that already holds some capacity."""
        return self._has_tenants and held > 0 and amount > 0 and amount > left_of_share(held, free, TENANT_WEIGHT)

    async def get(self, key: ExecutionKey) -> Execution | None:
        """Return the execution of a key once it is admitted, or None if there is no execution."""
        while (execution := self._running.get(key)) is not None and not execution.admission.done():
            await asyncio.wait([execution.admission])
        return execution

    def add(self, execution: Execution) -> None:
        """Reserve the free key of an execution.

        Raises Overloaded if a limit is reached, and Unavailable while the journal fails.
        """
        if len(self._unrecorded) >= MAX_UNRECORDED:
            raise Unavailable(
                f"{len(self._unrecorded)} executions could not be recorded: the journal must take writes again first",
                code=ErrorCode.ORCHESTRATION_DEPENDENCY_UNAVAILABLE,
                retry_after_s=1.0,
            )
        if execution.key in self._unrecorded:  # The journal shows it as running, so followers would wait indefinitely.
            raise Unavailable(
                f"execution {execution.key.request_id!r} was interrupted, and the journal does not know that yet",
                code=ErrorCode.ORCHESTRATION_DEPENDENCY_UNAVAILABLE,
                retry_after_s=1.0,
            )
        self.check_room(execution.account, execution.size_bytes)
        self._running[execution.key] = execution
        self._count_of.update(execution.account.payers)
        self._hold(execution.account, execution.size_bytes)

    def recount(self, execution: Execution, size_bytes: int, account: Account) -> None:
        """Update the counted size and account of an execution after its request was read."""
        self._hold(account, size_bytes)
        self._hold(execution.account, -execution.size_bytes)
        execution.size_bytes = size_bytes
        self._count_of.update(account.payers)
        self._uncount(execution.account)
        execution.account = account

    def remove(self, execution: Execution, *, is_recorded: bool) -> None:
        """Free the key of an execution. `is_recorded` is set if the journal has recorded its end or refusal."""
        del self._running[execution.key]
        self._uncount(execution.account)
        self._hold(execution.account, -execution.size_bytes)
        if not is_recorded:
            self._unrecorded.add(execution.key)
        execution.ended.set()

    def _hold(self, account: Account, size_bytes: int) -> None:
        self._used_bytes += size_bytes
        self._bytes_of[account.tenant] += size_bytes
        if not self._bytes_of[account.tenant]:
            del self._bytes_of[account.tenant]  # Keep no entries for idle tenants.

    def _uncount(self, account: Account) -> None:
        for payer in account.payers:
            self._count_of[payer] -= 1
            if not self._count_of[payer]:
                del self._count_of[payer]  # Keep no entries for idle tenants and subjects.
