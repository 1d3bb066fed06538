"""The programs and hosts that the deployment allows."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from pagantic_common.domain.errors import InvalidRequest
from services.tools.core.destinations import MAX_PORT, Address, is_public

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_HOST = re.compile(r"[\w.:-]+")


@dataclass(frozen=True, slots=True)
class HostAllowlist:
    """Hosts that may be called: names and addresses, each with or without a port, and networks.

    A name may resolve to a private address only if that address is also allowed, or if the name is in `inner_hosts`.
    The deployment configures these names, so they may have any address.
    """

    hosts: frozenset[tuple[str, int | None]] = frozenset()
    networks: tuple[Network, ...] = ()
    inner_hosts: frozenset[tuple[str, int]] = frozenset()

    @classmethod
    def parse(cls, entries: Iterable[str]) -> HostAllowlist:
        """Parse entries such as `api.example.com`, `127.0.0.1:3001`, `[::1]:3001` and `10.0.0.0/8`."""
        hosts: set[tuple[str, int | None]] = set()
        networks: list[Network] = []
        for entry in entries:
            if "/" in entry:
                networks.append(_parse_network(entry))
            else:
                hosts.add(_parse_host(entry))
        return cls(frozenset(hosts), tuple(networks))

    def with_inner_hosts(self, *inner_hosts: tuple[str, int]) -> HostAllowlist:
        """Return a copy with these inner hosts and ports, which may have any address."""
        return replace(self, inner_hosts=frozenset((_fold(host), port) for host, port in inner_hosts))

    def has_host(self, host: str, port: int) -> bool:
        """Return whether a host may be called by this name or address."""
        name = _fold(host)
        if {(name, None), (name, port)} & (self.hosts | self.inner_hosts):
            return True
        address = _address_of(name)
        return address is not None and self._has_network_of(address)

    def has_address(self, host: str, port: int, address: Address) -> bool:
        """Return whether an allowed host may have this address."""
        return (_fold(host), port) in self.inner_hosts or is_public(address) or self.has_host(str(address), port)

    def _has_network_of(self, address: Address) -> bool:
        return any(address.version == network.version and address in network for network in self.networks)


def _parse_network(entry: str) -> Network:
    try:
        return ipaddress.ip_network(entry)
    except ValueError as error:
        raise InvalidRequest(f"{entry!r} is not a network: {error}") from None


def _parse_host(entry: str) -> tuple[str, int | None]:
    if _address_of(entry) is not None:
        return _fold(entry), None
    host, colon, port = entry.partition("]:" if entry.startswith("[") else ":")
    if _HOST.fullmatch(host.strip("[]")) is None:
        raise InvalidRequest(f"{entry!r} is not a host: write a name or an address, and ':PORT' to allow that alone")
    if not colon:
        return _fold(host), None
    if not (port.isascii() and port.isdecimal() and 0 < int(port) <= MAX_PORT):
        raise InvalidRequest(f"{entry!r} has a wrong port: it must be between 1 and {MAX_PORT}")
    return _fold(host), int(port)


def _address_of(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


def _fold(host: str) -> str:
    """Return the canonical form of a host."""
    address = _address_of(host)
    if address is not None:
        return str(address)
    return host.strip("[]").rstrip(".").lower()


@dataclass(frozen=True, slots=True)
class ProgramAllowlist:
    """The allowed prefixes of command lines: a program and any number of its first arguments."""

    beginnings: tuple[tuple[str, ...], ...] = ()

    def has(self, argv: tuple[str, ...]) -> bool:
        """Return whether a command line has an allowed prefix."""
        return any(argv[: len(beginning)] == beginning for beginning in self.beginnings)
