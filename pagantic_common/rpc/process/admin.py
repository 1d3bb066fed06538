"""The admin port: health and channelz on a separate port, so that callers cannot block probes."""

from __future__ import annotations

import grpc
from grpc_channelz.v1 import channelz
from grpc_health.v1 import health_pb2_grpc

from pagantic_common.rpc.health import Health
from pagantic_common.rpc.process.listening import add_port
from pagantic_common.rpc.reflection import add_reflection
from pagantic_common.settings import ServiceSettings

MAX_ADMIN_RPCS = 64
MAX_ADMIN_MESSAGE_BYTES = 64 * 1024


async def start_admin_server(settings: ServiceSettings, health: Health) -> grpc.aio.Server | None:
    """Start the admin server, or return None if no port is set. Raises CannotListen."""
    if not settings.admin_port:
        return None
    server = grpc.aio.server(
        options=[
            ("grpc.so_reuseport", 0),
            ("grpc.max_concurrent_streams", MAX_ADMIN_RPCS),
            ("grpc.max_receive_message_length", MAX_ADMIN_MESSAGE_BYTES),
        ],
        maximum_concurrent_rpcs=MAX_ADMIN_RPCS,
    )
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    channelz.add_channelz_servicer(server)
    add_reflection(server, ["grpc.health.v1.Health", "grpc.channelz.v1.Channelz"])
    add_port(server, settings.host, settings.admin_port, "ADMIN_PORT")
    await server.start()
    return server
