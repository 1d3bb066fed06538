"""A real server with health, limits and interceptors, on a free port, inside a test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc

from pagantic_common.domain.defaults import HOST, MAX_MESSAGE_BYTES
from pagantic_common.rpc.access.registration import Registration
from pagantic_common.rpc.channel import open_channel
from pagantic_common.rpc.process.server import start_server
from pagantic_common.settings import ServiceSettings


@asynccontextmanager
async def serving(
    registrations: Sequence[Registration], *, max_message_bytes: int = MAX_MESSAGE_BYTES, **limits: Any
) -> AsyncIterator[tuple[grpc.aio.Channel, str]]:
    """Serve the registrations with these settings as limits, and yield a channel to the server and its address."""
    settings = ServiceSettings(port=0, max_message_bytes=max_message_bytes, **limits)
    server, _health, port = await start_server(settings, registrations)
    address = f"{HOST}:{port}"
    try:
        async with open_channel(address, max_message_bytes=2 * max_message_bytes) as channel:
            yield channel, address
    finally:
        await server.stop(grace=0)
