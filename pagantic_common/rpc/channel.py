"""The only way to open a channel to another service.

gRPC for asyncio does not survive a fork: its thread does not run in the child, which would wait forever. The channels
in the child share their sockets with the channels of the parent. If the child freed or closed them, it would disturb
the parent. A child therefore keeps the channels of its parent open, and does not open channels.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from typing import Any
from weakref import WeakSet

import grpc

from pagantic_common.domain.errors import PreconditionFailed
from pagantic_common.rpc.service_config import service_config

MAX_RECONNECT_S = 1.0
# By default, gRPC's core starts its threads again in a child, and some children crash in them. With this setting, a
# child has no threads of gRPC.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

_channels: WeakSet[grpc.aio.Channel] = WeakSet()
_channels_of_parents: list[grpc.aio.Channel] = []
_has_opened = False
_is_child = False
_is_forked = False


def _note_fork() -> None:
    global _is_child, _is_forked  # noqa: PLW0603 - the state belongs to the process
    _is_child = True
    _is_forked = _is_forked or _has_opened
    _channels_of_parents.extend(_channels)


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_note_fork)


def is_child() -> bool:
    """Return whether this process was forked after its parent had loaded this module."""
    return _is_child


def is_forked() -> bool:
    """Return whether this process was forked after its parent had opened a channel."""
    return _is_forked


def check_not_forked() -> None:
    """Raise PreconditionFailed in a process that was forked after its parent had opened a channel."""
    if _is_forked:
        raise forked()


def forked() -> PreconditionFailed:
    """Return the error for a call that a forked process cannot make."""
    return PreconditionFailed(
        "this process was forked from a process that had used gRPC, which does not survive a fork: make the first "
        "call after the fork (gunicorn without --preload), or start processes by spawn or forkserver"
    )


def channel_options(max_message_bytes: int, waits: Collection[str] = (), replica_of: str = "") -> list[tuple[str, Any]]:
    """Return the options of a channel. Reconnects are fast, so that a restarted service is soon in use again."""
    options: list[tuple[str, Any]] = []
    if replica_of:
        options += [("grpc.default_authority", replica_of), ("grpc.ssl_target_name_override", replica_of)]
    return [
        *options,
        ("grpc.service_config", service_config(waits, may_retry=not replica_of)),
        ("grpc.per_rpc_retry_buffer_size", max_message_bytes),  # Requests of any size can be retried.
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        # Each channel has its own connection, because a server limits the streams of a connection. Otherwise, in a
        # process with several services, a call could wait for a stream that it holds itself.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),  # Services are on the internal network; proxies are for outside addresses.
        # A frozen or disconnected process keeps its connection open, so only an unanswered ping reveals it.
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 5_000),
        ("grpc.http2.ping_timeout_ms", 5_000),  # This timeout decides. Its default is a minute.
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        # Despite its name, this also limits each connection attempt, because a busy peer sends its first frame late.
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
    """Open a channel that connects on first use, in plain text without credentials.

    Raises PreconditionFailed as `check_not_forked` does.

    gRPC does not retry refused calls of the methods in `waits`, because these calls queue for capacity of the service.
    A channel to a single replica does not retry calls; `replica_of` is then the host of the service.
    """
    global _has_opened  # noqa: PLW0603 - the state belongs to the process
    check_not_forked()
    _has_opened = True
    options = channel_options(max_message_bytes, waits, replica_of)
    if credentials is None:
        channel = grpc.aio.insecure_channel(address, options=options)
    else:
        channel = grpc.aio.secure_channel(address, credentials, options=options)
    _channels.add(channel)
    return channel
