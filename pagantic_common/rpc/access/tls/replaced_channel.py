"""A channel that another channel can replace while calls run.

A replacement helps after a host name temporarily had no address. gRPC repeats the lookup only after a wait that grows
to two minutes, and only a new channel starts without the wait.

A replacement also lets new replicas of a service receive calls, because a connected channel does not look its name up.
A server could close old connections instead, but some clients would lose their running calls: grpc-js with keepalive
mistakes a closing connection for a lost connection.
"""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
import logging
import math
import random
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import grpc

from pagantic_common.domain.backoff import Backoff

CONNECT_S = 5.0
MAX_AGE_S = 120.0
# gRPC reconnects within this time if the name still has its address.
RECONNECTS = Backoff(first_s=4.0, max_s=64.0)
LOOK_S = 2.0

# The Python client also uses this module, and is installed without structlog.
log = logging.getLogger(__name__)


def name_in(address: str) -> str:
    """Return the host name that gRPC looks up for an address, or an empty string if no lookup is needed."""
    scheme, _, rest = address.partition(":")
    if scheme in ("unix", "unix-abstract", "ipv4", "ipv6"):
        return ""
    target = rest if scheme == "dns" else address
    host = target.rpartition("/")[2].rpartition(":")[0].strip("[]")
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host
    return ""


class ReplacedChannel(grpc.aio.Channel):
    """A channel that can be reopened while calls run. Not thread-safe: use it from a single event loop.

    New calls use the new channel as soon as it is connected, at the latest after CONNECT_S, or immediately if the old
    channel is not connected. Earlier calls end on the old channel, which is closed after its last call.

    Args:
        open_one: Opens a channel.
        name: The host name that the channel looks up. If the name has an address but the channel is not connected, the
            channel is reopened. A channel with a name is also replaced after MAX_AGE_S, once the new channel is
            connected.
    """

    def __init__(self, open_one: Callable[[], grpc.aio.Channel], name: str = "") -> None:
        self._open_one = open_one
        self._name = name
        self._channel = open_one()
        self._next: grpc.aio.Channel | None = None
        self._next_by_s = 0.0
        self._old_at_s = self._begin_age()
        self._uses: Counter[grpc.aio.Channel] = Counter()
        self._closing: set[asyncio.Task[None]] = set()
        self._moved = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None

    def current(self) -> grpc.aio.Channel:
        """Return the channel for new calls."""
        if self._next is None and time.monotonic() >= self._old_at_s:
            self._open_next(math.inf)
        if self._next is not None and self._may_move(self._next):
            self._old_at_s = self._begin_age()
            old, self._channel, self._next = self._channel, self._next, None
            self._close_unused(old)
            self._moved.set()
            self._moved = asyncio.Event()
        return self._channel

    def replace(self) -> None:
        """Open a channel to replace the current channel."""
        self._open_next(time.monotonic() + CONNECT_S)

    def _open_next(self, by_s: float) -> None:
        self._drop_next()
        self._next = self._open_one()
        self._next_by_s = by_s

    def _begin_age(self) -> float:
        """Return the time at which a new channel becomes old. Random ages spread the replacements of many callers."""
        if not self._name:
            return math.inf
        return time.monotonic() + MAX_AGE_S * random.uniform(0.9, 1.1)  # noqa: S311 - nothing secret

    def _may_move(self, channel: grpc.aio.Channel) -> bool:
        """Make the next channel connect, and return whether calls may move to it."""
        is_ready = channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY
        is_lost = self._channel.get_state() is not grpc.ChannelConnectivity.READY
        return is_ready or is_lost or time.monotonic() >= self._next_by_s

    def _drop_next(self) -> None:
        if self._next is not None:
            unused, self._next = self._next, None
            self._close_unused(unused)

    def begin_use(self, channel: grpc.aio.Channel) -> None:
        """Keep a channel open until `end_use`."""
        self._uses[channel] += 1

    def end_use(self, channel: grpc.aio.Channel) -> None:
        """End a use of a channel. A replaced channel is closed after its last use."""
        self._uses[channel] -= 1
        self._close_unused(channel)

    def _close_unused(self, channel: grpc.aio.Channel) -> None:
        if self._uses[channel] > 0:
            return
        del self._uses[channel]
        if channel is not self._channel:
            task = asyncio.get_running_loop().create_task(channel.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    @contextmanager
    def _using(self) -> Iterator[grpc.aio.Channel]:
        channel = self.current()
        self.begin_use(channel)
        try:
            yield channel
        finally:
            self.end_use(channel)

    async def _keep_looking(self) -> None:
        """Reopen the channel while it is disconnected and its name has an address, after increasing waits."""
        for failures in itertools.count(1):
            await asyncio.sleep(RECONNECTS.wait_s(failures))
            await _wait_for_address(self._name)
            if self.current().get_state() is grpc.ChannelConnectivity.READY:
                return
            log.debug("a channel to %s is opened again", self._name)
            self.replace()
            self.current()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        """Close the channel and the channels that it replaced. Running calls are cancelled after `grace` seconds."""
        if self._looking is not None:
            self._looking.cancel()
        self._drop_next()
        others = [channel for channel in self._uses if channel is not self._channel]
        await asyncio.gather(*(channel.close(grace) for channel in (self._channel, *others)), *self._closing)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Return the state of the channel for new calls."""
        state = self.current().get_state(try_to_connect)
        is_lost = state is grpc.ChannelConnectivity.TRANSIENT_FAILURE
        if is_lost and self._name and (self._looking is None or self._looking.done()):
            self._looking = asyncio.get_running_loop().create_task(self._keep_looking())
        return state

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Wait until the channel for new calls changes its state or is replaced."""
        with self._using() as channel:
            waits = [
                asyncio.ensure_future(channel.wait_for_state_change(last_observed_state)),
                asyncio.ensure_future(self._moved.wait()),
            ]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()

    async def channel_ready(self) -> None:
        """Wait until the channel for new calls is connected."""
        while (state := self.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
            await self.wait_for_state_change(state)

    def unary_unary(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Return a method of the channel for new calls."""
        return _Method(self, "unary_unary", method, (arguments, options))

    def unary_stream(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Return a method of the channel for new calls."""
        return _Method(self, "unary_stream", method, (arguments, options))

    def stream_unary(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Return a method of the channel for new calls."""
        return _Method(self, "stream_unary", method, (arguments, options))

    def stream_stream(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Return a method of the channel for new calls."""
        return _Method(self, "stream_stream", method, (arguments, options))


class _Method:
    """A method of a service. Each call uses the channel that is then current."""

    def __init__(
        self, channel: ReplacedChannel, kind: str, path: str, making: tuple[tuple[Any, ...], dict[str, Any]]
    ) -> None:
        self._method = path.encode()  # `is_retried` finds the path here, as in gRPC's own methods.
        self._channel = channel
        self._kind = kind
        self._path = path
        self._arguments, self._options = making
        self._made_for: grpc.aio.Channel | None = None
        self._made: Any = None

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        channel = self._channel.current()
        if channel is not self._made_for:
            self._made = getattr(channel, self._kind)(self._path, *self._arguments, **self._options)
            self._made_for = channel
        call = self._made(*arguments, **options)
        self._channel.begin_use(channel)
        call.add_done_callback(lambda _call: self._channel.end_use(channel))
        return call


async def _wait_for_address(name: str) -> None:
    loop = asyncio.get_running_loop()
    while True:
        try:
            await loop.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):  # UnicodeError means that the text cannot be a host name.
            await asyncio.sleep(LOOK_S)
        else:
            return
