"""Addresses on which a server listens."""

from __future__ import annotations

import socket

BACKLOG = 128


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
