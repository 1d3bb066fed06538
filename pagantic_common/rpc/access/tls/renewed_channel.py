"""A channel whose certificates are renewed while calls run. gRPC renews those of servers only."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

import grpc

from pagantic_common.rpc.access.tls.certificates import CertificateFiles, read_certificates
from pagantic_common.rpc.channel import open_channel
from pagantic_common.settings import ServiceSettings

CONNECT_S = 5.0


def open_service_channel(
    address: str,
    settings: ServiceSettings,
    *,
    waits: Collection[str] = (),
    replica_of: str = "",
    certificates: CertificateFiles | None = None,
) -> grpc.aio.Channel:
    """Open a channel to another service, with TLS where the settings say so; otherwise as `open_channel` does.

    `certificates` are those of the settings, where they were read already. Raises InvalidRequest for files that cannot
    be used.
    """
    open_one = partial(
        open_channel, address, max_message_bytes=settings.max_message_bytes, waits=waits, replica_of=replica_of
    )
    certificates = certificates or read_certificates(settings)
    if certificates is None:
        return open_one()
    return RenewedChannel(lambda credentials: open_one(credentials=credentials), certificates)


class RenewedChannel(grpc.aio.Channel):
    """A channel that is replaced when its certificates change.

    New calls take the new channel once it is connected, after CONNECT_S, or at once where the old one is not connected.
    Earlier calls end on the old one, which is closed after the last of them. Used from one event loop.
    """

    def __init__(
        self, open_with: Callable[[grpc.ChannelCredentials], grpc.aio.Channel], certificates: CertificateFiles
    ) -> None:
        self._open_with = open_with
        self._certificates = certificates
        self._shown = certificates.current()
        self._channel = open_with(self._shown.for_calling())
        self._next: grpc.aio.Channel | None = None
        self._next_by_s = 0.0
        self._uses: Counter[grpc.aio.Channel] = Counter()
        self._closing: set[asyncio.Task[None]] = set()

    def current(self) -> grpc.aio.Channel:
        """Return the channel for new calls."""
        newest = self._certificates.current()
        if newest is not self._shown:
            self._shown = newest
            self._drop_next()
            self._next = self._open_with(newest.for_calling())
            self._next_by_s = time.monotonic() + CONNECT_S
        if self._next is not None and self._may_move(self._next):
            old, self._channel, self._next = self._channel, self._next, None
            self._close_unused(old)
        return self._channel

    def _may_move(self, channel: grpc.aio.Channel) -> bool:
        """Tell whether calls may move to the next channel, which this has connect."""
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
        """Close a channel that was replaced, after its last use."""
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

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        """Close the channel, and those that it replaced; running calls are cancelled after `grace`, in seconds."""
        self._drop_next()
        others = [channel for channel in self._uses if channel is not self._channel]
        await asyncio.gather(*(channel.close(grace) for channel in (self._channel, *others)), *self._closing)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Return the state of the channel for new calls."""
        return self.current().get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Wait until the channel for new calls has another state."""
        with self._using() as channel:
            await channel.wait_for_state_change(last_observed_state)

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
    """One method of a service, called on the channel that is current at the time of each call."""

    def __init__(
        self, channel: RenewedChannel, kind: str, path: str, making: tuple[tuple[Any, ...], dict[str, Any]]
    ) -> None:
        self._method = path.encode()  # where `is_retried` finds it, as in gRPC's own
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
