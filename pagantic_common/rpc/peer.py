"""A called service: calls wait while it starts or restarts, and are refused while it is away.

gRPC handles immediate retries (`service_config`), and this module handles longer waits. A call is made once a
connection reports that the service is serving. This wait is limited by the caller's deadline and the peer's patience.
An unanswered call is repeated after such a wait only if it changes nothing. After a failed wait, later calls wait only
for the time of a reconnect, until the service is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakSet

import grpc

from pagantic_common.domain.calls.breaker import Breaker
from pagantic_common.domain.calls.principal import Principal
from pagantic_common.domain.errors import Cancelled, DeadlineExceeded, NotSent, PaganticError, Unreachable
from pagantic_common.rpc.call import OpenCall, StreamMethod, call_unary, opened_stream
from pagantic_common.rpc.channel import MAX_RECONNECT_S
from pagantic_common.rpc.service_config import MAX_ATTEMPTS, is_retried
from pagantic_common.rpc.status import UNREACHABLE_RETRY_AFTER_S, restore_error
from pagantic_common.rpc.waiting_line import Place
from pagantic_common.telemetry.logging import get_logger
from pagantic_common.telemetry.metrics import add_gauges, make_balance, make_counter
from pagantic_common.telemetry.names import RPC_OPEN_CIRCUITS, RPC_REFUSED_CALLS, RPC_WAITING_CALLS
from pagantic_common.telemetry.scope import current_deadline, current_principal

ResponseT = TypeVar("ResponseT")

Credentials = Callable[[str, Principal], str]

RECONNECT_S = 1.5 * MAX_RECONNECT_S  # gRPC exceeds its maximum by up to a fifth, and connecting takes time.

log = get_logger(__name__)
refused_calls = make_counter(RPC_REFUSED_CALLS, "Calls that were not made, because the service does not answer")
waiting_calls = make_balance(RPC_WAITING_CALLS, "Calls that wait for a connection to a service that serves")


def pass_on(_name: str, caller: Principal) -> str:
    """Return the credentials of a service that works only for its callers."""
    return caller.tenant_token


@dataclass(slots=True)
class _Ending:
    """End of a stream. `error` is None if the stream ended without an error."""

    error: PaganticError | None = None


class Peer:
    """A called service with all its methods and replicas.

    Args:
        name: Name of the service, for messages.
        channel: The channel to the service. Its connections report whether the service is serving.
        patience_s: Maximum total time that a call waits for the service, in seconds. If 0, calls do not wait.
        credentials: Returns the `authorization` of a call, given the peer's name and the current caller.
        now_s: Returns the monotonic time in seconds.
    """

    def __init__(
        self,
        name: str,
        channel: grpc.aio.Channel,
        *,
        patience_s: float,
        credentials: Credentials = pass_on,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self._credentials = credentials
        self._channel = channel
        self._patience_s = patience_s
        self._breaker = Breaker()
        self._is_logged_open = False
        self._is_unreachable = False
        self._now_s = now_s
        _peers.add(self)

    @property
    def is_open(self) -> bool:
        """Whether calls are refused because the latest calls had no answer."""
        return self._breaker.is_open

    async def call_unary(
        self,
        method: grpc.aio.UnaryUnaryMultiCallable[Any, ResponseT],
        request: Any,
        timeout_s: float | None = None,
        *,
        answer_s: float | None = None,
    ) -> ResponseT:
        """Make a unary call as `rpc.call.call_unary` does. Raises Unreachable if the wait is too long.

        `timeout_s` counts from the start of the call, whereas the caller's deadline includes the wait. A call that
        changes nothing is repeated if there is no answer after `answer_s`, because its replica may be frozen. The last
        attempt may take `timeout_s`.
        """
        patience = self._patience_for(method)
        while True:
            await self._admit(patience)
            try:
                attempt_s = patience.attempt_s(timeout_s, answer_s)
                response = await call_unary(
                    self.name, method, request, attempt_s, credentials=self._current_credentials()
                )
            except PaganticError as error:
                self._note(error)
                if not patience.allows_another(error):
                    raise
            else:
                self._note(None)
                return response

    async def call_stream(
        self,
        method: StreamMethod[ResponseT],
        request: Any,
        timeout_s: float | None = None,
        *,
        place: Place | None = None,
    ) -> AsyncGenerator[ResponseT, None]:
        """Make a streaming call as `rpc.call.call_stream` does. Each message counts as an answer.

        The request may be a stream of requests, if the method accepts a stream. A call with a `place` in a queue waits
        there while the service has no capacity for it.
        """
        patience = self._patience_for(method)
        is_answered = False
        while True:
            await self._admit(patience)
            async with (
                opened_stream(self.name, method, request, timeout_s, self._current_credentials()) as opened,
                self._ending(opened) as ending,
            ):
                async for response in opened.responses:
                    is_answered = True
                    self._note(None)
                    yield response
            error = ending.error
            if error is None:
                return
            if is_answered:
                raise error from None
            self._note(error)
            if place is not None and place.is_refusal(error) and await place.wait_again():
                patience = self._patience_for(method)
            elif not patience.allows_another(error):
                raise error from None

    @contextlib.asynccontextmanager
    async def _ending(self, opened: OpenCall[Any]) -> AsyncIterator[_Ending]:
        """Catch the failure of the enclosed stream, so that it can be examined after the stream is closed."""
        ending = _Ending()
        try:
            yield ending
        except grpc.aio.AioRpcError as failed:
            ending.error = restore_error(self.name, await opened.error_of(failed))
        else:
            self._note(None)

    def _current_credentials(self) -> str:
        return self._credentials(self.name, current_principal())

    def _patience_for(self, method: object) -> _Patience:
        attempts = 1
        if is_retried(method) and self._patience_s:
            attempts = MAX_ATTEMPTS
        return _Patience(self._patience_s, attempts=attempts)

    async def _admit(self, patience: _Patience) -> None:
        """Wait until a call may be made. Raises Unreachable if the wait exceeds the patience."""
        while True:
            state = self._channel.get_state(try_to_connect=True)
            if state is grpc.ChannelConnectivity.READY:
                self._is_unreachable = False
            elif self._patience_s:
                await self._wait_for_change(state, patience)
                continue
            wait_s = self._breaker.admit(self._now_s())
            if self._breaker.is_open is not self._is_logged_open:
                self._log_change()
            if wait_s <= 0:
                return
            if wait_s > patience.left_s:
                self._refuse(f"the last calls failed; the next is made in {max(wait_s, 0.1):.1f} s", wait_s)
            with patience.waiting(self.name):
                await asyncio.sleep(min(wait_s, patience.deadline_s()))

    async def _wait_for_change(self, state: grpc.ChannelConnectivity, patience: _Patience) -> None:
        if self._is_unreachable:
            patience.limit(RECONNECT_S)
        if patience.left_s <= 0:
            self._is_unreachable = True
            self._refuse(f"no connection within {patience.spent_s:.1f} s", UNREACHABLE_RETRY_AFTER_S)
        with patience.waiting(self.name), contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(patience.left_s, patience.deadline_s())):
                await self._channel.wait_for_state_change(state)

    def _refuse(self, reason: str, retry_after_s: float) -> None:
        refused_calls.add(1, {"service": self.name})
        raise NotSent(f"the {self.name} service cannot be reached: {reason}", retry_after_s=retry_after_s)

    def _note(self, error: PaganticError | None) -> None:
        if isinstance(error, Unreachable):
            self._breaker.note_failure(self._now_s())
        elif not isinstance(error, DeadlineExceeded | Cancelled):  # These do not reveal the state of the service.
            self._breaker.note_answer()
        if self._breaker.is_open is not self._is_logged_open:
            self._log_change(str(error))

    def _log_change(self, reason: str = "") -> None:
        self._is_logged_open = self._breaker.is_open
        if self._is_logged_open:
            log.warning("circuit opened", peer=self.name, reason=reason)
        else:
            log.info("circuit closed", peer=self.name)


_peers: WeakSet[Peer] = WeakSet()


def _open_circuits() -> Mapping[str, float]:
    return Counter(peer.name for peer in _peers if peer.is_open)


add_gauges(RPC_OPEN_CIRCUITS, "Connections whose calls are refused", "service", _open_circuits)


class _Patience:
    """The time that a call may still wait, and the number of its remaining attempts."""

    def __init__(self, patience_s: float, *, attempts: int) -> None:
        self._bound_s = patience_s
        self._attempts_left = attempts
        self._is_short = False
        self.spent_s = 0.0

    @property
    def left_s(self) -> float:
        """The remaining time in seconds."""
        return self._bound_s - self.spent_s

    def limit(self, bound_s: float) -> None:
        """Lower the limit, unless the call has already waited."""
        if not self.spent_s:
            self._bound_s = min(self._bound_s, bound_s)

    @contextlib.contextmanager
    def waiting(self, service: str) -> Iterator[None]:
        """Count the time spent in the block. Raises DeadlineExceeded if the caller's deadline passes before its end."""
        started_s = time.monotonic()
        self._check_deadline(service)
        waiting_calls.add(1, {"service": service})
        try:
            yield
        finally:
            waiting_calls.add(-1, {"service": service})
        self.spent_s += time.monotonic() - started_s
        self._check_deadline(service)

    def _check_deadline(self, service: str) -> None:
        if self.deadline_s() <= 0:
            raise DeadlineExceeded(f"the deadline passed while the {service} service could not be reached")

    def deadline_s(self) -> float:
        """Return the time left before the caller's deadline, or infinity without a deadline."""
        left_s = current_deadline().remaining_s(time.monotonic())
        if left_s is None:
            return math.inf
        return left_s

    def attempt_s(self, timeout_s: float | None, answer_s: float | None) -> float | None:
        """Return the timeout of the next attempt. The last attempt may take `timeout_s`."""
        self._is_short = answer_s is not None and self._attempts_left > 1
        if self._is_short:
            return answer_s
        return timeout_s

    def allows_another(self, error: PaganticError) -> bool:
        """Return whether a call that failed with this error may be retried: it is unanswered and has attempts left."""
        self._attempts_left -= 1
        is_unanswered = isinstance(error, Unreachable)
        if self._is_short and isinstance(error, DeadlineExceeded):
            is_unanswered = self.deadline_s() > 0
        return is_unanswered and self._attempts_left > 0 and self.left_s > 0
