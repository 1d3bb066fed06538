"""Lets a call in: finds its caller, and looks whether that caller may call the method."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from pagantic_common.domain.calls.principal import LOCAL, Principal, Scope
from pagantic_common.domain.errors import ErrorCode, PaganticError, PermissionDenied, Unauthenticated
from pagantic_common.telemetry.logging import get_logger
from pagantic_common.telemetry.names import AUTHORIZATION_KEY
from pagantic_common.telemetry.scope import work_scope

RECHECK_S = 2.0  # how often the credentials of a call that runs are looked at again

log = get_logger(__name__)

Scopes = Mapping[str, Scope]  # what a caller needs, by the method of a service


class Authenticator(Protocol):
    """Knows callers by their credentials."""

    async def authenticate(self, credentials: str) -> Principal:
        """Return the caller; `credentials` is the call's `authorization`, empty without one.

        Raises Unauthenticated, and Unavailable when it cannot tell.
        """


@dataclass(frozen=True, slots=True)
class Door:
    """Who may call one method: the scope that it needs, and who knows its callers.

    Without an authenticator each caller is the local one, who may call everything.
    """

    scope: Scope
    authenticator: Authenticator | None = None


class Gate:
    """Who may call which method of one server; `doors` are named "service/Method".

    A method without a door is denied to everybody.
    """

    def __init__(self, doors: Mapping[str, Door]) -> None:
        self._doors = doors

    @asynccontextmanager
    async def admit(self, method: str, metadata: Mapping[str, Any]) -> AsyncIterator[None]:
        """Set the caller for the work inside, which ends when the caller's credentials do not hold any more.

        Raises Unauthenticated and PermissionDenied.
        """
        door = self._doors.get(method)
        if door is None:
            raise PermissionDenied(f"nobody may call {method}", code=ErrorCode.AUTH_DENIED)
        if door.authenticator is None:
            with work_scope(principal=LOCAL):
                yield
            return
        watch = _Watch(door.authenticator, str(metadata.get(AUTHORIZATION_KEY, "")))
        principal = await watch.authenticate()
        if door.scope not in principal.scopes:
            log.warning("denied", method=method, subject=principal.subject, tenant=principal.tenant, scope=door.scope)
            raise PermissionDenied(f"{method} needs the scope {door.scope.value!r}", code=ErrorCode.AUTH_DENIED)
        with work_scope(principal=principal):
            async with watch.watching():
                yield


class _Watch:
    """Looks at the credentials of one call again and again while it runs."""

    def __init__(self, authenticator: Authenticator, credentials: str) -> None:
        self._authenticator = authenticator
        self._credentials = credentials
        self._refusal: Unauthenticated | None = None

    async def authenticate(self) -> Principal:
        return await self._authenticator.authenticate(self._credentials)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """End the work inside once the credentials are refused; raises the refusal."""
        loop = asyncio.get_running_loop()
        looking: set[asyncio.Task[None]] = set()
        limit = asyncio.timeout(None)

        def look() -> None:
            looking.add(asyncio.ensure_future(self._look_until_refused(limit)))

        first = loop.call_later(RECHECK_S, look)  # most calls end before
        try:
            async with limit:
                yield
        except TimeoutError:
            if self._refusal is None:
                raise
            raise self._refusal from None
        finally:
            first.cancel()
            for task in looking:
                task.cancel()

    async def _look_until_refused(self, limit: asyncio.Timeout) -> None:
        while self._refusal is None:
            try:
                await self.authenticate()
            except Unauthenticated as error:
                self._refusal = error
                limit.reschedule(asyncio.get_running_loop().time())
            except PaganticError as error:  # it cannot be asked now: what was true stays so
                log.warning("the caller of a running call cannot be looked up", reason=str(error))
            await asyncio.sleep(RECHECK_S)
