"""Starts a service's server, with its connections, limits, interceptors and health."""

from __future__ import annotations

from collections.abc import Sequence

import grpc
from grpc_health.v1 import health_pb2_grpc

from pagantic_common.rpc.access.registration import Registration, gate_of
from pagantic_common.rpc.access.tls.certificates import read_certificates, server_credentials
from pagantic_common.rpc.call_limits import CallLimits, CallShares
from pagantic_common.rpc.health import SERVING, Health
from pagantic_common.rpc.process.listening import add_port
from pagantic_common.rpc.reading import WaitLimits
from pagantic_common.rpc.reflection import add_reflection
from pagantic_common.rpc.server_call import CallInterceptor
from pagantic_common.settings import ServiceSettings
from pagantic_common.telemetry.metrics import add_gauge
from pagantic_common.telemetry.names import LIVENESS, RPC_MAX_CALLS, RPC_RUNNING_CALLS

HEALTH_SERVICE = "grpc.health.v1.Health"

_CONNECTION_OPTIONS = (
    ("grpc.so_reuseport", 0),
    # Callers ping a silent call, some callers each second. By default, gRPC would treat these pings as an attack.
    ("grpc.http2.min_ping_interval_without_data_ms", 500),
    ("grpc.keepalive_permit_without_calls", 1),
    # The calls of a vanished caller end after these times.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.ping_timeout_ms", 20_000),
    # A connection has no maximum age, because a client of grpc-js with keepalive would lose its running calls at that
    # age, and an execution may last for days. The services' own callers replace old connections (`replaced_channel`).
    ("grpc.max_connection_idle_ms", 600_000),
)
# This exceeds the permitted number of calls per host. The service, which states the reason, therefore rejects calls
# before the connection holds them back.
MIN_STREAMS = 1024


async def start_server(
    settings: ServiceSettings, registrations: Sequence[Registration], *, max_streams: int | None = None
) -> tuple[grpc.aio.Server, Health, int]:
    """Start a server with health, limits and interceptors. Returns the server, its health and its port.

    `max_streams` limits the running calls of a connection, including a health watch; the caller's gRPC library holds
    back the rest. The default is the larger of MIN_STREAMS and MAX_CONCURRENT_RPCS.

    Raises CannotListen, and InvalidRequest for certificates that cannot be used.
    """
    limits = CallLimits(settings.max_concurrent_rpcs, settings.max_calls_per_host, settings.max_concurrent_bytes)
    shares = CallShares(settings.max_concurrent_rpcs, settings.max_calls_per_host)
    waits = WaitLimits(settings.max_silence_s, settings.max_upload_s)
    add_gauge(RPC_RUNNING_CALLS, "calls that run", lambda: limits.running)
    add_gauge(RPC_MAX_CALLS, "most calls that may run", lambda: settings.max_concurrent_rpcs)
    server = grpc.aio.server(
        interceptors=[CallInterceptor(limits, shares, gate_of(registrations), waits)],
        options=[
            *_CONNECTION_OPTIONS,
            ("grpc.max_concurrent_streams", max_streams or max(MIN_STREAMS, settings.max_concurrent_rpcs)),
            ("grpc.max_receive_message_length", settings.max_received_bytes),
            ("grpc.max_send_message_length", settings.max_message_bytes),
        ],
    )
    health = Health()
    names = [registration.service_name for registration in registrations]
    for registration in registrations:
        registration.add_to(server)
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    if settings.serves_reflection:
        add_reflection(server, [*names, HEALTH_SERVICE])
    port = add_port(server, settings.host, settings.port, "PORT", credentials_of(settings))
    for name in ("", LIVENESS, *names):
        health.set(name, SERVING)
    health.set_ready(is_ready=all(registration.why_not_ready is None for registration in registrations))
    await server.start()
    return server, health, port


def credentials_of(settings: ServiceSettings) -> grpc.ServerCredentials | None:
    """Return the credentials that the port presents to callers, or None for plain text."""
    certificates = read_certificates(settings, settings.caller_ca_file)
    if certificates is None:
        return None
    return server_credentials(certificates, requires_certificate=settings.requires_certificate)
