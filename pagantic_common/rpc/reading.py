"""Reads requests: refuses malformed requests, and limits the time that a service waits for the requests of a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from google.protobuf import message

from pagantic_common.domain.errors import DeadlineExceeded, InvalidRequest
from pagantic_common.rpc.counting import objection_of

RequestT = TypeVar("RequestT")


@dataclass(frozen=True, slots=True)
class Malformed:
    """Represents a request that is refused before any code of the service reads it."""

    reason: str


def tolerant(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Return a deserializer that returns Malformed instead of raising, because gRPC would log a traceback.

    The deserializer also refuses messages with too many entries, before their bytes count and other code reads them.
    """

    def read(data: bytes) -> Any:
        try:
            request = deserialize(data)
        except message.DecodeError:
            return Malformed("the message cannot be read: it is cut, of another type, or not UTF-8")
        if isinstance(request, message.Message) and (objection := objection_of(request)):
            return Malformed(objection)
        return request

    return read


def check_readable(request: Any) -> None:
    """Raise InvalidRequest if the request is malformed."""
    if isinstance(request, Malformed):
        raise InvalidRequest(request.reason)


@dataclass(frozen=True, slots=True)
class WaitLimits:
    """The maximum times that a service waits for the requests of a stream, in seconds.

    The time in which the service works on a request does not count.

    Attributes:
        silence_s: For the next request.
        total_s: For all requests together.
    """

    silence_s: float = 30.0
    total_s: float = 3600.0


class RequestStream(AsyncIterator[Any]):
    """The requests of a stream. Raises InvalidRequest at a malformed request, and DeadlineExceeded at a limit."""

    def __init__(self, requests: AsyncIterable[Any], limits: WaitLimits) -> None:
        self._requests = requests
        self._iterator: AsyncIterator[Any] | None = None
        self._limits = limits
        self._left_s = limits.total_s

    async def __anext__(self) -> Any:
        clock = asyncio.get_running_loop().time
        began_s = clock()
        try:
            async with asyncio.timeout(min(self._limits.silence_s, self._left_s)):
                request = await anext(self._opened())
        except TimeoutError:
            raise DeadlineExceeded(self._reason) from None
        self._left_s -= clock() - began_s
        check_readable(request)
        return request

    def _opened(self) -> AsyncIterator[Any]:
        if self._iterator is None:  # gRPC warns about an iterator that is opened but never read.
            self._iterator = aiter(self._requests)
        return self._iterator

    @property
    def _reason(self) -> str:
        if self._left_s < self._limits.silence_s:
            return (
                f"the parts of the stream took more than {self._limits.total_s:g} s (MAX_UPLOAD_S): send it again in "
                "smaller streams"
            )
        return f"no part of the stream came for {self._limits.silence_s:g} s (MAX_SILENCE_S): send it again"

    async def relayed(self) -> AsyncIterator[Any]:
        """Yield the requests without time limits, for another service that has its own limits.

        A relay cannot know whether the other service waits for the next request or works on the requests that it has.
        """
        async for request in self._opened():
            check_readable(request)
            yield request


def relayed(requests: AsyncIterator[RequestT]) -> AsyncIterator[RequestT]:
    """Return the requests of a stream for another service that limits the time between them."""
    if isinstance(requests, RequestStream):
        return requests.relayed()
    return requests
