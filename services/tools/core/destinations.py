"""Restricts the destinations of the fetch tool: an allowlist of hosts, and a rule for their addresses.

An address that is not public is permitted only if an entry names the address itself. This module uses neither a
resolver nor HTTP.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pagantic_common.domain.addresses import address_of
from pagantic_common.domain.messages import ToolFailed

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

DEFAULT_PORTS: Final = {"http": 80, "https": 443}
MAX_PORT: Final = 65535

_ENTRY: Final = re.compile(
    r"(?:(?P<scheme>https?)://)?"
    r"(?P<host>(?:\*\.)?[a-z0-9_](?:[a-z0-9._-]*[a-z0-9_])?|\[[0-9a-f:.]+\])"
    r"(?::(?P<port>[1-9][0-9]{0,4}))?"
)
# Blocks that Python's `is_global` permits, although traffic to them may end at another, private address: IPv4 inside
# IPv6 (compatible, NAT64, 6to4), the anycast of 6to4, and tunnel and documentation blocks that Python does not know.
_MISLEADING: Final = tuple(
    map(
        ipaddress.ip_network,
        ("::/96", "64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/23", "3fff::/20", "192.88.99.0/24"),
    )
)
_UNICAST_IPV6: Final = ipaddress.ip_network("2000::/3")


@dataclass(frozen=True, slots=True)
class Destination:
    """The scheme, host and port of a URL. The host is lower-case ASCII without brackets and without a final dot."""

    scheme: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class AllowedHost:
    """An entry of the allowlist. `*.example.com` covers every name below example.com."""

    scheme: str
    host: str
    port: int

    def covers(self, destination: Destination) -> bool:
        """Return whether requests to the destination are permitted."""
        if (self.scheme, self.port) != (destination.scheme, destination.port):
            return False
        if self.host.startswith("*."):
            return destination.host.endswith(self.host[1:]) and not destination.host.startswith(".")
        return destination.host == self.host

    def __str__(self) -> str:
        address = address_of(self.host, self.port)
        if self.port == DEFAULT_PORTS[self.scheme]:
            address = address.removesuffix(f":{self.port}")
        return f"{self.scheme}://{address}"


def parse_allowed_host(text: str) -> AllowedHost:
    """Parse an entry such as `example.com`, `*.example.com:8443` or `http://10.0.0.7`. The default scheme is HTTPS.

    Raises ValueError if the text is not a valid entry.
    """
    match = _ENTRY.fullmatch(text.strip().lower())
    if match is None:
        raise ValueError(f"{text!r} is not a host: write example.com, *.example.com, http://example.com or host:port")
    scheme = match["scheme"] or "https"
    port = int(match["port"] or DEFAULT_PORTS[scheme])
    if port > MAX_PORT:
        raise ValueError(f"port {port} of {text!r} is above {MAX_PORT}")
    return AllowedHost(scheme, _canonical(match["host"].strip("[]")), port)


def _canonical(host: str) -> str:
    """Return the canonical spelling of a literal address. A name is returned unchanged."""
    address = read_address(host)
    if address is None:
        return host
    return str(address)


def read_address(host: str) -> Address | None:
    """Parse a host as an address in the usual form; None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Allowlist:
    """The hosts to which requests may go."""

    hosts: tuple[AllowedHost, ...]

    def check_host(self, destination: Destination) -> None:
        """Raise ToolFailed if no entry covers the host."""
        if any(host.covers(destination) for host in self.hosts):
            return
        permitted_hosts = ", ".join(map(str, self.hosts[:10]))
        requested_host = AllowedHost(destination.scheme, destination.host[:100], destination.port)
        raise ToolFailed(f"requests to {str(requested_host)!r} are not permitted: permitted are {permitted_hosts}")

    def check_addresses(self, destination: Destination, addresses: Iterable[Address]) -> None:
        """Raise ToolFailed unless every address of the host is public or named by an entry."""
        for address in addresses:
            named = Destination(destination.scheme, str(address), destination.port)
            if not is_public(address) and not any(host.covers(named) for host in self.hosts):
                raise ToolFailed(f"host {destination.host[:100]!r} has an address that is not public: use another host")


def is_public(address: Address) -> bool:
    """Return whether an address belongs to the public internet. An IPv4-mapped address is checked as IPv4."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return is_public(address.ipv4_mapped)
        if address.scope_id is not None or address not in _UNICAST_IPV6:
            return False
    if any(address in network for network in _MISLEADING):
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved)
