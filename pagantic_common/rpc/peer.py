"""A service that another calls: its name for messages, and a breaker, so that one that is gone is not waited for.

What is tried again is gRPC's to decide (`service_config`); the breaker sees how a call ended after that.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, TypeVar

import grpc

from pagantic_common.domain.breaker import Breaker
from pagantic_common.domain.errors import Cancelled, DeadlineExceeded, PaganticError
from pagantic_common.rpc.call import call_stream, call_unary
from pagantic_common.rpc.status import Unreachable
from pagantic_common.telemetry.logging import get_logger
from pagantic_common.telemetry.metrics import make_counter
from pagantic_common.telemetry.names import RPC_REFUSED_CALLS

ResponseT = TypeVar("ResponseT")

log = get_logger(__name__)
refused_calls = make_counter(RPC_REFUSED_CALLS, "Calls that were not made, because the service does not answer")


class Peer:
    """One called service, however many methods and replicas it has. `now_s` is monotonic."""

    def __init__(self, name: str, now_s: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self._breaker = Breaker()
        self._is_told_open = False
        self._now_s = now_s

    async def call_unary(
        self, method: grpc.aio.UnaryUnaryMultiCallable[Any, ResponseT], request: Any, timeout_s: float | None = None
    ) -> ResponseT:
        """Make a unary call as `rpc.call.call_unary` does; raises Unreachable at once while the service is gone."""
        self._admit()
        try:
            response = await call_unary(self.name, method, request, timeout_s)
        except PaganticError as error:
            self._note(error)
            raise
        self._note(None)
        return response

    async def call_stream(
        self, method: grpc.aio.UnaryStreamMultiCallable[Any, ResponseT], request: Any, timeout_s: float | None = None
    ) -> AsyncGenerator[ResponseT, None]:
        """Make a streaming call as `rpc.call.call_stream` does; its first message is the answer that counts."""
        self._admit()
        is_answered = False
        try:
            async with aclosing(call_stream(self.name, method, request, timeout_s)) as responses:
                async for response in responses:
                    if not is_answered:
                        is_answered = True
                        self._note(None)
                    yield response
        except PaganticError as error:
            if not is_answered:
                self._note(error)
            raise
        if not is_answered:
            self._note(None)

    def _admit(self) -> None:
        wait_s = self._breaker.admit(self._now_s())
        self._tell_change()
        if wait_s > 0:
            refused_calls.add(1, {"service": self.name})
            raise Unreachable(
                f"the {self.name} service cannot be reached; it is tried again in {wait_s:.2f} s", retry_after_s=wait_s
            )

    def _note(self, error: PaganticError | None) -> None:
        if isinstance(error, Unreachable):
            self._breaker.note_failure(self._now_s())
        elif not isinstance(error, DeadlineExceeded | Cancelled):  # which tell of the caller
            self._breaker.note_answer()
        self._tell_change(str(error))

    def _tell_change(self, reason: str = "") -> None:
        if self._breaker.is_open and not self._is_told_open:
            log.warning("circuit opened", peer=self.name, reason=reason)
        elif self._is_told_open and not self._breaker.is_open:
            log.info("circuit closed", peer=self.name)
        self._is_told_open = self._breaker.is_open
