"""Hosts and ports, in the forms that gRPC, URLs, sockets and settings have for them."""

from __future__ import annotations

import ipaddress
from typing import Final

from pagantic_common.domain.defaults import HOST

ANY_HOSTS: Final = ("0.0.0.0", "::")  # noqa: S104 - compared with, not bound


def bare_host(host: str) -> str:
    """Return a host in the form for sockets, which have no brackets around an IPv6 address."""
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
    """Return the address at which programs of this machine call a server that listens on a host."""
    return address_of(HOST if bare_host(host) in ANY_HOSTS else host, port)
