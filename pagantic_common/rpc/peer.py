"""A service that another calls: waits for one that starts or restarts, and does not call one that is gone.

What is tried again at once is gRPC's to decide (`service_config`). This is about longer: a call is made when a
connection says that the service serves, and waits for that within its caller's deadline and its peer's patience. A call
that was made and not answered is made again after such a wait only where it changes nothing. Once a wait was in vain,
later calls wait only as long as a reconnect takes, until the service is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from typing import Any, TypeVar

import grpc

from pagantic_common.domain.breaker import Breaker
from pagantic_common.domain.errors import Cancelled, DeadlineExceeded, PaganticError
from pagantic_common.rpc.call import call_stream, call_unary
from pagantic_common.rpc.channel import MAX_RECONNECT_S
from pagantic_common.rpc.service_config import MAX_ATTEMPTS, is_retried
from pagantic_common.rpc.status import UNREACHABLE_RETRY_AFTER_S, Unreachable
from pagantic_common.telemetry.logging import get_logger
from pagantic_common.telemetry.metrics import make_counter
from pagantic_common.telemetry.names import RPC_REFUSED_CALLS
from pagantic_common.telemetry.scope import current_deadline

ResponseT = TypeVar("ResponseT")

RECONNECT_S = 1.5 * MAX_RECONNECT_S  # gRPC waits up to a fifth longer than its maximum, and connecting takes time

log = get_logger(__name__)
refused_calls = make_counter(RPC_REFUSED_CALLS, "Calls that were not made, because the service does not answer")


class Peer:
    """One called service, however many methods and replicas it has.

    Args:
        name: For messages.
        channel: Whose connections say whether the service serves.
        patience_s: How long a call waits for the service, all waits of it together; 0 waits for nothing.
        now_s: Monotonic time.
    """

    def __init__(
        self,
        name: str,
        channel: grpc.aio.Channel,
        *,
        patience_s: float,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self._channel = channel
        self._patience_s = patience_s
        self._breaker = Breaker()
        self._is_logged_open = False
        self._is_given_up = False
        self._now_s = now_s

    async def call_unary(
        self, method: grpc.aio.UnaryUnaryMultiCallable[Any, ResponseT], request: Any, timeout_s: float | None = None
    ) -> ResponseT:
        """Make a unary call as `rpc.call.call_unary` does; raises Unreachable when the service cannot be waited for.

        `timeout_s` counts from when the call is made; the caller's deadline counts all the time.
        """
        patience = _Patience(self._patience_s, attempts=MAX_ATTEMPTS if is_retried(method) else 1)
        while True:
            await self._admit(patience)
            try:
                response = await call_unary(self.name, method, request, timeout_s)
            except PaganticError as error:
                self._note(error)
                if not patience.allows_another(error):
                    raise
            else:
                self._note(None)
                return response

    async def call_stream(
        self, method: grpc.aio.UnaryStreamMultiCallable[Any, ResponseT], request: Any, timeout_s: float | None = None
    ) -> AsyncGenerator[ResponseT, None]:
        """Make a streaming call as `rpc.call.call_stream` does; its first message is the answer that counts."""
        patience = _Patience(self._patience_s, attempts=MAX_ATTEMPTS if is_retried(method) else 1)
        is_answered = False
        while True:
            await self._admit(patience)
            try:
                async with aclosing(call_stream(self.name, method, request, timeout_s)) as responses:
                    async for response in responses:
                        if not is_answered:
                            is_answered = True
                            self._note(None)
                        yield response
            except PaganticError as error:
                if is_answered:
                    raise
                self._note(error)
                if not patience.allows_another(error):
                    raise
            else:
                if not is_answered:
                    self._note(None)
                return

    async def _admit(self, patience: _Patience) -> None:
        """Return when a call may be made; raises Unreachable when that is not within the patience."""
        while True:
            state = self._channel.get_state(try_to_connect=True)
            if state is grpc.ChannelConnectivity.READY:
                self._is_given_up = False
            elif self._patience_s:
                await self._wait_for_change(state, patience)
                continue
            wait_s = self._breaker.admit(self._now_s())
            self._log_change()
            if wait_s <= 0:
                return
            if wait_s > patience.left_s:
                self._refuse(f"the last calls failed; the next is made in {max(wait_s, 0.1):.1f} s", wait_s)
            with patience.waiting(self.name):
                await asyncio.sleep(min(wait_s, patience.deadline_s()))

    async def _wait_for_change(self, state: grpc.ChannelConnectivity, patience: _Patience) -> None:
        if self._is_given_up:
            patience.limit(RECONNECT_S)
        if patience.left_s <= 0:
            self._is_given_up = True
            self._refuse(f"no connection within {patience.spent_s:.1f} s", UNREACHABLE_RETRY_AFTER_S)
        with patience.waiting(self.name), contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(patience.left_s, patience.deadline_s())):
                await self._channel.wait_for_state_change(state)

    def _refuse(self, reason: str, retry_after_s: float) -> None:
        refused_calls.add(1, {"service": self.name})
        raise Unreachable(f"the {self.name} service cannot be reached: {reason}", retry_after_s=retry_after_s)

    def _note(self, error: PaganticError | None) -> None:
        if isinstance(error, Unreachable):
            self._breaker.note_failure(self._now_s())
        elif not isinstance(error, DeadlineExceeded | Cancelled):  # which tell of the caller
            self._breaker.note_answer()
        self._log_change(str(error))

    def _log_change(self, reason: str = "") -> None:
        if self._breaker.is_open and not self._is_logged_open:
            log.warning("circuit opened", peer=self.name, reason=reason)
        elif self._is_logged_open and not self._breaker.is_open:
            log.info("circuit closed", peer=self.name)
        self._is_logged_open = self._breaker.is_open


class _Patience:
    """How long one call may still wait, and how often it may be made."""

    def __init__(self, patience_s: float, *, attempts: int) -> None:
        self._bound_s = patience_s
        self._attempts_left = attempts if patience_s else 1
        self.spent_s = 0.0

    @property
    def left_s(self) -> float:
        """What is left of it."""
        return self._bound_s - self.spent_s

    def limit(self, bound_s: float) -> None:
        """Lower it, unless the call waits already."""
        if not self.spent_s:
            self._bound_s = min(self._bound_s, bound_s)

    @contextlib.contextmanager
    def waiting(self, service: str) -> Iterator[None]:
        """Count the time inside; raises DeadlineExceeded when the caller's deadline has passed before or after it."""
        started_s = time.monotonic()
        self._check_deadline(service)
        yield
        self.spent_s += time.monotonic() - started_s
        self._check_deadline(service)

    def _check_deadline(self, service: str) -> None:
        if self.deadline_s() <= 0:
            raise DeadlineExceeded(f"the deadline passed while the {service} service could not be reached")

    def deadline_s(self) -> float:
        """Return what is left of the caller's deadline."""
        left_s = current_deadline().remaining_s(time.monotonic())
        return math.inf if left_s is None else left_s

    def allows_another(self, error: PaganticError) -> bool:
        """Tell whether a call that ended so may be made once more: nothing answered it, and it changes nothing."""
        self._attempts_left -= 1
        return isinstance(error, Unreachable) and self._attempts_left > 0 and self.left_s > 0
