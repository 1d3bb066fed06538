"""The admin port: health and channelz on a separate port, so that no caller can block a probe."""

from __future__ import annotations

import grpc
from grpc_channelz.v1 import channelz
from grpc_health.v1 import health_pb2_grpc

from pagantic_common.rpc.health import Health
from pagantic_common.rpc.reflection import add_reflection
from pagantic_common.settings import ServiceSettings

MAX_ADMIN_RPCS = 64
MAX_ADMIN_MESSAGE_BYTES = 64 * 1024


class PortInUse(Exception):
    """The server cannot listen on the address. `setting` is the setting of the port."""

    def __init__(self, message: str, setting: str) -> None:
        super().__init__(message)
        self.setting = setting


async def start_admin_server(settings: ServiceSettings, health: Health) -> grpc.aio.Server | None:
    """Start the admin server, or return None if no port is set. Raises PortInUse."""
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
    listen(server, f"{settings.host}:{settings.admin_port}", "ADMIN_PORT")
    await server.start()
    return server


def listen(
    server: grpc.aio.Server, address: str, setting: str, credentials: grpc.ServerCredentials | None = None
) -> int:
    """Listen on an address and return its port. If there are no credentials, the port uses plain text.

    Raises PortInUse, naming the setting of the port.
    """
    try:
        if credentials is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, credentials)
    except RuntimeError:
        raise PortInUse(
            f"cannot listen on {address}: the port is in use or the address is not this machine's", setting
        ) from None
