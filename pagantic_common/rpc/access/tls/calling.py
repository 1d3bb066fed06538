"""Connections of commands, probes and the Python client, in plain text or with the services' TLS files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from urllib.parse import urlsplit

import grpc

from pagantic_common.domain.addresses import address_of
from pagantic_common.domain.defaults import is_loopback, path_of
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.rpc.access.tls.replaced_channel import ReplacedChannel, name_in
from pagantic_common.rpc.channel import open_channel

TLS, CA_FILE = "PAGANTIC_TLS", "PAGANTIC_TLS_CA_FILE"
CERT_FILE, KEY_FILE = "PAGANTIC_TLS_CERT_FILE", "PAGANTIC_TLS_KEY_FILE"
HTTPS, HTTP = "https://", "http://"
HTTP_PORT, HTTPS_PORT = 80, 443
_SCHEME = re.compile("(unix|unix-abstract|dns|ipv4|ipv6|xds|vsock):|.*/")


@dataclass(frozen=True, slots=True)
class Target:
    """The address to connect to, host:port, and the credentials. None as credentials selects plain text."""

    address: str
    credentials: grpc.ChannelCredentials | None = None

    @property
    def is_private(self) -> bool:
        """Whether the traffic is private, because it is encrypted or stays on this machine."""
        return self.credentials is not None or is_loopback(_host_of(self.address))

    def open(self, max_message_bytes: int) -> grpc.aio.Channel:
        """Open a channel for asyncio. A channel to a host name follows the addresses of the name."""
        open_one = partial(
            open_channel, self.address, max_message_bytes=max_message_bytes, credentials=self.credentials
        )
        name = name_in(self.address)
        return ReplacedChannel(open_one, name) if name else open_one()

    def open_blocking(self) -> grpc.Channel:
        """Open a channel for programs without asyncio."""
        options = [("grpc.enable_http_proxy", 0)]
        if self.credentials is None:
            return grpc.insecure_channel(self.address, options=options)
        return grpc.secure_channel(self.address, self.credentials, options=options)


def find_target(address: str, environment: Mapping[str, str]) -> Target:
    """Return the target for an address.

    `https://host[:port]` selects TLS, and `http://host:port` selects plain text. For host:port, PAGANTIC_TLS=files
    selects TLS. A server is trusted through the authorities in PAGANTIC_TLS_CA_FILE or, if that is unset, gRPC's public
    authorities. PAGANTIC_TLS_CERT_FILE and PAGANTIC_TLS_KEY_FILE name the certificate to present, if any. Raises
    InvalidRequest for a URL that is not an address, for an address without a port, and for an unreadable file.
    """
    if address.startswith(HTTP):
        return Target(_host_and_port(address, HTTP_PORT))
    if address.startswith(HTTPS):
        return Target(_host_and_port(address, HTTPS_PORT), _credentials(environment))
    _check_port(address)
    if environment.get(TLS, "").lower() != "files":
        return Target(address)
    return Target(address, _credentials(environment))


def _host_and_port(url: str, default_port: int) -> str:
    try:
        parts = urlsplit(url)
        port = parts.port or default_port
    except ValueError:
        raise InvalidRequest(f"{url} is no address: write https://host or https://host:port") from None
    if not parts.hostname or parts.path.strip("/") or parts.query or "@" in parts.netloc or parts.netloc.endswith(":"):
        raise InvalidRequest(f"{url} is no address: write https://host or https://host:port")
    return address_of(parts.hostname, port)


def _check_port(address: str) -> None:
    """Raise InvalidRequest for a host without a port, because gRPC would use port 443. unix:PATH does not need a port.

    gRPC reads an IPv6 address without brackets as a host without a port, whatever its ending.
    """
    if _SCHEME.match(address) is not None:
        return
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal()):
        raise InvalidRequest(f"the address {address!r} has no port: write HOST:PORT, or https://HOST")
    if ":" in host and not host.startswith("["):
        raise InvalidRequest(f"the address {address!r} may end with a port or not: write [HOST]:PORT for IPv6")


def _credentials(environment: Mapping[str, str]) -> grpc.ChannelCredentials:
    chain, key = _read(CERT_FILE, environment), _read(KEY_FILE, environment)
    if (chain is None) != (key is None):
        raise InvalidRequest(f"set both {CERT_FILE} and {KEY_FILE}, or neither")
    return grpc.ssl_channel_credentials(_read(CA_FILE, environment), key, chain)


def _read(name: str, environment: Mapping[str, str]) -> bytes | None:
    if not (path := environment.get(name)):
        return None
    try:
        return path_of(name, path).read_bytes()
    except OSError as error:
        raise InvalidRequest(f"{name} {path!r} cannot be read: {error.strerror}") from None


def _host_of(address: str) -> str:
    if address.startswith("unix:"):
        return address
    return address.rpartition("/")[2].rpartition(":")[0]
