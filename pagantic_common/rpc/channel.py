"""The only way to open a channel to another service."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import grpc

from pagantic_common.rpc.service_config import service_config

MAX_RECONNECT_S = 1.0


def channel_options(max_message_bytes: int, waits: Collection[str] = (), replica_of: str = "") -> list[tuple[str, Any]]:
    """Return the options of a channel. Reconnects are quick, so that a restarted service is soon in use."""
    options: list[tuple[str, Any]] = []
    if replica_of:
        options += [("grpc.default_authority", replica_of), ("grpc.ssl_target_name_override", replica_of)]
    return [
        *options,
        ("grpc.service_config", service_config(waits, may_retry=not replica_of)),
        ("grpc.per_rpc_retry_buffer_size", max_message_bytes),  # requests of any size can be retried
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        # Each channel has its own connection, because a server limits the streams of a connection. With several
        # services in one process, a call could otherwise wait for a stream that it holds itself.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),  # services are on the internal network; proxies are for outside addresses
        # A frozen or disconnected process keeps its connection open: only an unanswered ping reveals it.
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 5_000),
        ("grpc.http2.ping_timeout_ms", 5_000),  # This timeout decides; its default is a minute.
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        # Despite its name, this also limits each connection attempt: a busy peer sends its first frame late.
        ("grpc.min_reconnect_backoff_ms", 2_000),
        ("grpc.max_reconnect_backoff_ms", round(MAX_RECONNECT_S * 1000)),
        ("grpc.dns_min_time_between_resolutions_ms", 2_000),
    ]


def open_channel(
    address: str,
    *,
    max_message_bytes: int,
    waits: Collection[str] = (),
    credentials: grpc.ChannelCredentials | None = None,
    replica_of: str = "",
) -> grpc.aio.Channel:
    """Open a channel that connects on first use, in plain text if there are no credentials.

    gRPC does not retry refused calls of the methods in `waits`, because these calls queue for capacity of the service.
    A channel to a single replica retries no call; `replica_of` is then the host of the service.
    """
    options = channel_options(max_message_bytes, waits, replica_of)
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=options)
    return grpc.aio.secure_channel(address, credentials, options=options)
