"""Addresses on which a server listens, and from which it is called."""

from __future__ import annotations

import ipaddress
import socket

BACKLOG = 128
_IPV6_PREFIX = 64  # A provider gives each of its customers a network of at least this size.


def listen(host: str, port: int) -> socket.socket:
    """Listen on a port of a host. Raises OSError if the port cannot be used.

    The host may be an IPv6 address with or without brackets.
    """
    family = socket.AF_INET
    if ":" in host:
        family = socket.AF_INET6
    return socket.create_server((host.strip("[]"), port), family=family, backlog=BACKLOG)


def address_of(host: str, port: int) -> str:
    """Return the address of a port in the form for URLs and gRPC, with an IPv6 address in brackets."""
    bare = host.strip("[]")
    if ":" in bare:
        bare = f"[{bare}]"
    return f"{bare}:{port}"


def peer_of(host: str) -> str:
    """Return the name of the peer at an address. All addresses of an IPv6 network of 64 bits are one peer."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(address), _IPV6_PREFIX), strict=False))
