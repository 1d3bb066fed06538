"""The constraint service on a free port, as tests talk to it."""

from contextlib import asynccontextmanager

import grpc

from pagantic.constraint.v1 import constraint_service_pb2_grpc
from pagantic_common.rpc.process.server import start_server
from services.constraint.__main__ import open_app
from services.constraint.settings import ConstraintSettings


@asynccontextmanager
async def running(**knobs):
    settings = ConstraintSettings(port=0, workers=knobs.pop("workers", 1), **knobs)
    async with open_app(settings) as registrations:
        server, _, port = await start_server(settings, registrations)
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                yield constraint_service_pb2_grpc.ConstraintServiceStub(channel)
        finally:
            await server.stop(grace=None)
