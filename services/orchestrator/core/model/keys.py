"""Keys of what is stored: each begins with the tenant that owns it."""

from __future__ import annotations

from typing import NamedTuple


class ExecutionKey(NamedTuple):
    """The key of an execution."""

    tenant: str
    request_id: str


class SessionKey(NamedTuple):
    """The key of a stored conversation."""

    tenant: str
    session_id: str
