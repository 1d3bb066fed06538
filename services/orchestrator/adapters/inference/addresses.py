"""Resolves a gRPC address to the addresses of a service's replicas."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from typing import Final

from pagantic_common.domain.addresses import address_of

_DNS: Final = "dns:"
_LISTS: Final = ("ipv4:", "ipv6:")


@dataclass(frozen=True, slots=True)
class ServiceAddress:
    """The address of a service's replicas: either a DNS name or a list."""

    host: str
    port: int = 0
    listed: tuple[str, ...] = ()

    async def resolve(self) -> tuple[str, ...]:
        """Return the replicas' current addresses, sorted and in gRPC's form. Raises OSError if DNS returns no address.

        If the replicas have both IPv4 and IPv6 addresses, only the family that DNS returns first is used.
        """
        if self.listed:
            return self.listed
        loop = asyncio.get_running_loop()
        entries = await loop.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        first = entries[0][0]
        hosts = {str(entry[4][0]) for entry in entries if entry[0] is first}
        scheme = "ipv6:" if first is socket.AF_INET6 else "ipv4:"
        return tuple(sorted(scheme + address_of(host, self.port) for host in hosts))


def parse_address(address: str) -> ServiceAddress | None:
    """Parse an address such as `dns:///host:port` or `ipv4:one:port,other:port` into the addresses of replicas.

    Returns None for any other form, because that address names a single replica.
    """
    for scheme in _LISTS:
        if address.startswith(scheme):
            members = address.removeprefix(scheme).split(",")
            return ServiceAddress(members[0].rpartition(":")[0], listed=tuple(scheme + member for member in members))
    if not address.startswith(_DNS):
        return None
    host, _, port = address.removeprefix(_DNS).rpartition("/")[2].rpartition(":")
    if not host or not port.isdigit():
        return None
    return ServiceAddress(host.strip("[]"), int(port))
