"""Limits the number of calls per tenant and per key in a time window, as counted by this orchestrator."""

from __future__ import annotations

import time

from limits import RateLimitItem, parse
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter

from pagantic_common.domain.calls.principal import Principal
from pagantic_common.domain.errors import ErrorCode, Overloaded

MIN_RETRY_S = 0.05
STORAGES = 256  # Every hit scans its whole storage for expired entries, so many small storages are faster.


class CallRates:
    """Counts calls in sliding windows.

    Args:
        of_tenant: Limit on the calls of a whole tenant, as in "600/minute"; an empty string means no limit.
        of_key: Limit on the calls of one key, or of one caller without a key; an empty string means no limit.
    """

    def __init__(self, of_tenant: str, of_key: str) -> None:
        self._of_tenant = parse(of_tenant) if of_tenant else None
        self._of_key = parse(of_key) if of_key else None
        self._limiters = [SlidingWindowCounterRateLimiter(MemoryStorage()) for _ in range(STORAGES)]

    async def count(self, caller: Principal) -> None:
        """Count a call. Raises Overloaded (QUOTA_RATE) if the call exceeds a limit.

        A call that exceeds the limit of its key does not count toward the limit of the tenant.
        """
        if self._of_key is not None:
            who = caller.key_id or caller.subject
            await self._hit(self._of_key, "this key", caller.tenant, who)
        if self._of_tenant is not None:
            await self._hit(self._of_tenant, f"tenant {caller.tenant!r}", caller.tenant)

    async def _hit(self, rate: RateLimitItem, whose: str, *names: str) -> None:
        limiter = self._limiters[hash(names) % STORAGES]
        if await limiter.hit(rate, *names):
            return
        window = await limiter.get_window_stats(rate, *names)
        raise Overloaded(
            f"{whose} makes more than {rate} calls",
            code=ErrorCode.QUOTA_RATE,
            retry_after_s=max(MIN_RETRY_S, window.reset_time - time.time()),
        )
