"""Admits calls: identifies the caller, and checks whether the caller may call the method."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol, TypeVar

from pagantic_common.domain.calls.principal import LOCAL, Principal, Scope
from pagantic_common.domain.errors import ErrorCode, PaganticError, PermissionDenied, Unauthenticated
from pagantic_common.telemetry.logging import get_logger
from pagantic_common.telemetry.names import AUTHORIZATION_KEY
from pagantic_common.telemetry.scope import work_scope

RECHECK_S = 2.0  # interval between checks of a running call's credentials

ResponseT = TypeVar("ResponseT")

log = get_logger(__name__)

Scopes = Mapping[str, Scope]  # the scope that each method of a service needs
Metadata = Sequence[tuple[str, str | bytes]]


class Authenticator(Protocol):
    """Identifies callers by their credentials."""

    async def authenticate(self, credentials: str) -> Principal:
        """Return the caller. `credentials` is the call's `authorization`, or an empty string without one.

        Raises Unauthenticated if the credentials are refused, and Unavailable if they cannot be checked.
        """


class PeerReader(Protocol):
    """Identifies callers by the certificates of their connections."""

    def read(self, spiffe_id: str) -> Principal | None:
        """Return the caller of a call without credentials, or None if its certificate does not name a caller.

        `spiffe_id` is the SPIFFE id in the certificate, or an empty string. Raises PermissionDenied if the connection
        may not make any calls.
        """


# Called for each denied call with its method, its caller if known, and the error.
OnDenied = Callable[[str, Principal | None, PaganticError], None]


# Counts an admitted call. Raises Overloaded if the limit is exceeded.
Meter = Callable[[Principal], Awaitable[None]]


async def _count_nothing(_caller: Principal) -> None:
    """Admit a call without counting it."""


def _tell_nobody(_method: str, _caller: Principal | None, _error: PaganticError) -> None:
    """Ignore a denied call."""


@dataclass(frozen=True, slots=True)
class Guard:
    """The authenticator of a service, and the listener for its decisions.

    Attributes:
        authenticator: Identifies callers. If None, every caller is the local caller, which may call all methods.
        peers: Reads certificates. If None, certificates are ignored.
        on_denied: Called for each denied call.
        meter: Counts the admitted calls.
    """

    authenticator: Authenticator | None = None
    peers: PeerReader | None = None
    on_denied: OnDenied = _tell_nobody
    meter: Meter = _count_nothing


OPEN_TO_ALL = Guard()


@dataclass(frozen=True, slots=True)
class Door:
    """Access to a method: the scope that it needs, and the guard of its service."""

    scope: Scope
    guard: Guard


class Admitted:
    """An admitted call, and whether its caller's credentials are still valid."""

    def __init__(self, *, is_watched: bool) -> None:
        self._is_watched = is_watched
        self._refusal: Unauthenticated | None = None
        self._limit: asyncio.Timeout | None = None

    async def next_of(self, responses: AsyncGenerator[ResponseT, None]) -> ResponseT | None:
        """Return the next response of a stream, or None at its end. Raises the refusal as `until_refused` does.

        The response must be sent outside of this method. If a send inside gRPC is cancelled, the caller gets no status.
        """
        async with self.until_refused():
            return await anext(responses, None)

    def until_refused(self) -> AbstractAsyncContextManager[None]:
        """Cancel the enclosed work when the credentials are refused, and raise the refusal.

        A refusal before the work is raised at its start.
        """
        if not self._is_watched:
            return nullcontext()
        return self._until_refused()

    @asynccontextmanager
    async def _until_refused(self) -> AsyncIterator[None]:
        if self._refusal is not None:
            raise self._refusal
        try:
            async with asyncio.timeout(None) as self._limit:
                yield
        except TimeoutError:
            if self._refusal is None:
                raise
            raise self._refusal from None
        finally:
            self._limit = None

    def refuse(self, refusal: Unauthenticated) -> None:
        """End the work in progress, and prevent further work."""
        self._refusal = refusal
        if self._limit is not None:
            self._limit.reschedule(asyncio.get_running_loop().time())


class Gate:
    """Access to the methods of a server. The keys of `doors` have the form "service/Method".

    A method without a door rejects every call.
    """

    def __init__(self, doors: Mapping[str, Door]) -> None:
        self._doors = doors

    @asynccontextmanager
    async def admit(
        self, method: str, metadata: Metadata, spiffe_id_of_peer: Callable[[], str] = str
    ) -> AsyncIterator[Admitted]:
        """Set the caller for the enclosed work, and recheck the caller's credentials while the work runs.

        Raises Unauthenticated, PermissionDenied, or Overloaded if the caller calls too often.
        """
        door = self._doors.get(method)
        if door is None:
            raise PermissionDenied(f"nobody may call {method}", code=ErrorCode.AUTH_DENIED)
        try:
            principal = await _identify(door.guard, metadata, spiffe_id_of_peer)
        except (Unauthenticated, PermissionDenied) as error:
            door.guard.on_denied(method, None, error)
            raise
        if door.scope not in principal.scopes:
            log.warning("denied", method=method, subject=principal.subject, tenant=principal.tenant, scope=door.scope)
            denied = PermissionDenied(f"{method} needs the scope {door.scope.value!r}", code=ErrorCode.AUTH_DENIED)
            door.guard.on_denied(method, principal, denied)
            raise denied
        await door.guard.meter(principal)
        if door.guard.authenticator is None or not principal.key_id:
            with work_scope(principal=principal):
                yield Admitted(is_watched=False)
            return
        admitted = Admitted(is_watched=True)
        watch = _Watch(door.guard.authenticator, _credentials_of(metadata), principal.expires_at, admitted)
        watch.start()
        try:
            with work_scope(principal=principal):
                yield admitted
        finally:
            watch.stop()


async def _identify(guard: Guard, metadata: Metadata, spiffe_id_of_peer: Callable[[], str]) -> Principal:
    """Return the caller of a call. Raises Unauthenticated, PermissionDenied or Unavailable."""
    peer = guard.peers.read(spiffe_id_of_peer()) if guard.peers is not None else None
    if guard.authenticator is None:
        return LOCAL
    credentials = _credentials_of(metadata)
    if peer is not None and not credentials:
        return peer
    return await guard.authenticator.authenticate(credentials)


def _credentials_of(metadata: Metadata) -> str:
    """Return the only `authorization` of a call.

    Raises Unauthenticated if there are several, because a proxy may have checked a different header.
    """
    credentials = [value for key, value in metadata if key == AUTHORIZATION_KEY]
    if len(credentials) > 1:
        raise Unauthenticated(f"the call has {len(credentials)} credentials: send one")
    return str(next(iter(credentials), ""))


class _Watch:
    """Rechecks the credentials of a running call periodically."""

    def __init__(
        self, authenticator: Authenticator, credentials: str, expires_at: float | None, admitted: Admitted
    ) -> None:
        self._authenticator = authenticator
        self._credentials = credentials
        self._expires_at = expires_at
        self._admitted = admitted
        self._first: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Schedule the first check of the credentials. Most calls end before it."""
        self._first = asyncio.get_running_loop().call_later(RECHECK_S, self._begin)

    def stop(self) -> None:
        """Stop checking the credentials."""
        if self._first is not None:
            self._first.cancel()
        if self._task is not None:
            self._task.cancel()

    def _begin(self) -> None:
        self._task = asyncio.ensure_future(self._check_until_refused())

    async def _check_until_refused(self) -> None:
        while True:
            try:
                await self._authenticator.authenticate(self._credentials)
            except Unauthenticated as error:
                self._admitted.refuse(error)
                return
            except Exception as error:  # noqa: BLE001 - while nobody can tell, only time can end the call
                log.warning("the credentials of a running call cannot be checked", reason=str(error))
                if self._expires_at is not None and self._expires_at <= time.time():
                    self._admitted.refuse(Unauthenticated("the API key has expired", code=ErrorCode.AUTH_EXPIRED))
                    return
            await asyncio.sleep(RECHECK_S)
