"""Lets other services and outside callers share a service's port, with a servicer and a guard for each group."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any

import grpc

from pagantic_common.domain.calls.principal import Principal, PrincipalKind
from pagantic_common.domain.errors import Unauthenticated
from pagantic_common.rpc.access.gate import Authenticator, Guard
from pagantic_common.rpc.access.registration import Registration
from pagantic_common.rpc.access.tenant_tokens import is_tenant_token
from pagantic_common.telemetry.scope import current_principal

Handlers = Mapping[str, Any]
Behavior = Callable[[Any, Any], Awaitable[Any]]
StreamBehavior = Callable[[Any, Any], AsyncGenerator[Any, None]]


def share(inner: Registration, edge: Registration) -> Registration:
    """Return a registration that sends calls with tenant tokens to `inner`, and other calls to `edge`.

    Both registrations have the same service name. If either has no authenticator, the calls cannot be distinguished,
    and all calls go to `inner`.
    """
    of_services, of_callers = inner.guard.authenticator, edge.guard.authenticator
    if of_services is None or of_callers is None:
        return inner

    async def count_callers(caller: Principal) -> None:
        if caller.kind is not PrincipalKind.SERVICE:
            await edge.guard.meter(caller)

    guard = Guard(_Either(of_services, of_callers), edge.guard.peers, edge.guard.on_denied, count_callers)
    handlers, others = _handlers_of(inner), _handlers_of(edge)
    chosen = {name: _chosen(handlers[name], others[name]) for name in handlers}

    def add_to(server: grpc.aio.Server) -> None:
        generic = grpc.method_handlers_generic_handler(inner.service_name, chosen)
        server.add_generic_rpc_handlers((generic,))

    return replace(inner, add_to=add_to, guard=guard)


class _Either:
    """An Authenticator that identifies services by their tenant tokens, and others by the edge's authenticator."""

    def __init__(self, of_services: Authenticator, of_callers: Authenticator) -> None:
        self._of_services, self._of_callers = of_services, of_callers

    async def authenticate(self, credentials: str) -> Principal:
        """Return the caller. Raises Unauthenticated or Unavailable."""
        if is_tenant_token(credentials):
            with suppress(Unauthenticated):
                return await self._of_services.authenticate(credentials)
        return await self._of_callers.authenticate(credentials)


class _Recorder:
    """Records the handlers that a servicer adds to a server."""

    def __init__(self) -> None:
        self.handlers: dict[str, Any] = {}

    def add_generic_rpc_handlers(self, _handlers: Sequence[Any]) -> None:
        """Ignore the handlers in their older form."""

    def add_registered_method_handlers(self, _service: str, handlers: Handlers) -> None:
        """Record the handlers of a service's methods."""
        self.handlers.update(handlers)


def _handlers_of(registration: Registration) -> dict[str, Any]:
    recorder: Any = _Recorder()
    registration.add_to(recorder)
    handlers: dict[str, Any] = recorder.handlers
    return handlers


def _chosen(inner: Any, edge: Any) -> Any:
    codec = {"request_deserializer": inner.request_deserializer, "response_serializer": inner.response_serializer}
    if inner.request_streaming:
        chosen = _chosen_stream(inner.stream_stream, edge.stream_stream)
        return grpc.stream_stream_rpc_method_handler(chosen, **codec)
    if inner.response_streaming:
        return grpc.unary_stream_rpc_method_handler(_chosen_stream(inner.unary_stream, edge.unary_stream), **codec)
    return grpc.unary_unary_rpc_method_handler(_chosen_unary(inner.unary_unary, edge.unary_unary), **codec)


def _chosen_unary(of_services: Behavior, of_callers: Behavior) -> Behavior:
    async def call(request: Any, context: Any) -> Any:
        is_service = current_principal().kind is PrincipalKind.SERVICE
        return await (of_services if is_service else of_callers)(request, context)

    return call


def _chosen_stream(of_services: StreamBehavior, of_callers: StreamBehavior) -> StreamBehavior:
    async def call(request: Any, context: Any) -> AsyncGenerator[Any, None]:
        is_service = current_principal().kind is PrincipalKind.SERVICE
        async with aclosing((of_services if is_service else of_callers)(request, context)) as responses:
            async for response in responses:
                yield response

    return call
