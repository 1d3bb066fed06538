"""Defines the registration that adds a service to its server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import grpc

from pagantic_common.rpc.access.gate import OPEN_TO_ALL, Door, Gate, Guard, Scopes


@dataclass(frozen=True, slots=True)
class Registration:
    """A servicer to add: its full service name, the function that adds it to a server, and the scope of each method.

    Without a guard, every caller may call every method.

    The server calls `begin_drain` once no new calls will arrive, and `drain` shortly before the drain's time ends.
    `drain` ends running work, so that callers receive an answer instead of a broken connection. `wait_until_broken`
    returns the reason why the service can no longer serve; the process then exits with status 70. `why_not_ready`
    returns the reason why the service is not ready, or an empty string if it is ready. A service without
    `why_not_ready` is ready once it listens.
    """

    service_name: str
    add_to: Callable[[grpc.aio.Server], None]
    scopes: Scopes
    guard: Guard = OPEN_TO_ALL
    begin_drain: Callable[[], None] | None = None
    drain: Callable[[], Awaitable[None]] | None = None
    wait_until_broken: Callable[[], Awaitable[str]] | None = None
    why_not_ready: Callable[[], Awaitable[str]] | None = None


def gate_of(registrations: Sequence[Registration]) -> Gate:
    """Return the access rules for the methods of a server."""
    return Gate(
        {
            f"{registration.service_name}/{method}": Door(scope, registration.guard)
            for registration in registrations
            for method, scope in registration.scopes.items()
        }
    )
