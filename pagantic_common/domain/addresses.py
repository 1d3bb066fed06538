"""Hosts and ports, in the forms that gRPC, URLs, sockets, settings and shares of callers use."""

from __future__ import annotations

import ipaddress
from typing import Final

from pagantic_common.domain.defaults import HOST

ANY_HOSTS: Final = ("0.0.0.0", "::")  # noqa: S104 - compared with, not bound
_IPV6_PREFIX: Final = 64  # A provider gives each of its customers a network of at least this size.


def bare_host(host: str) -> str:
    """Return a host in the form for sockets, without brackets around an IPv6 address."""
    return host.removeprefix("[").removesuffix("]")


def address_of(host: str, port: int) -> str:
    """Return the address of a port in the form for gRPC and URLs, with an IPv6 address in brackets."""
    bare = bare_host(host)
    try:
        ipaddress.IPv6Address(bare)
    except ValueError:
        return f"{bare}:{port}"
    return f"[{bare}]:{port}"


def caller_address(host: str, port: int) -> str:
    """Return the address for calls from this machine to a server that listens on a host."""
    return address_of(HOST if bare_host(host) in ANY_HOSTS else host, port)


def peer_of(host: str) -> str:
    """Return the name of the peer at an address. All addresses of an IPv6 /64 network are the same peer."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(address), _IPV6_PREFIX), strict=False))
