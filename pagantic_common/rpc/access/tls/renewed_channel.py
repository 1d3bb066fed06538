"""A channel that renews its certificates while calls run, because gRPC itself renews only server certificates."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

import grpc

from pagantic_common.rpc.access.tls.certificates import CertificateFiles, read_certificates
from pagantic_common.rpc.access.tls.replaced_channel import ReplacedChannel, name_in
from pagantic_common.rpc.channel import open_channel
from pagantic_common.settings import ServiceSettings


def open_service_channel(
    address: str,
    settings: ServiceSettings,
    *,
    waits: Collection[str] = (),
    replica_of: str = "",
    certificates: CertificateFiles | None = None,
) -> grpc.aio.Channel:
    """Open a channel to another service, with TLS if the settings require it, and otherwise as `open_channel` does.

    `certificates` are the certificates that the settings name, if already read. Raises InvalidRequest if a file is
    unusable.
    """
    open_one = partial(
        open_channel, address, max_message_bytes=settings.max_message_bytes, waits=waits, replica_of=replica_of
    )
    certificates = certificates or read_certificates(settings)
    name = name_in(address)
    if certificates is not None:
        return RenewedChannel(lambda credentials: open_one(credentials=credentials), certificates, name)
    if name:
        return ReplacedChannel(open_one, name)
    return open_one()


class RenewedChannel(ReplacedChannel):
    """A ReplacedChannel that is also replaced when its certificates change."""

    def __init__(
        self,
        open_with: Callable[[grpc.ChannelCredentials], grpc.aio.Channel],
        certificates: CertificateFiles,
        name: str = "",
    ) -> None:
        self._certificates = certificates
        self._shown = certificates.current()
        super().__init__(lambda: open_with(self._shown.for_calling()), name)

    def current(self) -> grpc.aio.Channel:
        """Return the channel for new calls."""
        newest = self._certificates.current()
        if newest is not self._shown:
            self._shown = newest
            self.replace()
        return super().current()
