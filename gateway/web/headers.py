"""Checks of a request's headers against DNS rebinding: a web page must not reach a server of the same machine."""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import urlsplit

LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


def host_name_of(authority: str) -> str:
    """Return the name in a Host header, without its port."""
    if authority.startswith("["):
        return authority.partition("]")[0].lower() + "]"
    return authority.partition(":")[0].lower()


def is_known_host(authority: str, names: Collection[str]) -> bool:
    """Return whether a Host header names this server."""
    return host_name_of(authority) in names


def is_known_origin(origin: str, names: Collection[str], origins: Collection[str]) -> bool:
    """Return whether a page of this origin may call: a known host over HTTP, or a listed origin.

    Programs send no origin. A page without an origin, for example from a file, sends `null`.
    """
    if not origin or origin in origins:
        return True
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and host_name_of(parts.netloc) in names
