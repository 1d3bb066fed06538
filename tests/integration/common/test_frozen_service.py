"""A service that is frozen keeps its connections; its callers notice nevertheless."""

import asyncio
import os
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pagantic_common.rpc.channel import open_channel

ROOT = Path(__file__).parents[3]
SERVICE = """
import asyncio
from pagantic_common.rpc.process.server import start_server
from pagantic_common.settings import ServiceSettings

async def main():
    server, _, port = await start_server(ServiceSettings(port=0), [])
    print(port, flush=True)
    await server.wait_for_termination()

asyncio.run(main())
"""


@asynccontextmanager
async def service():
    """Start a service in a process of its own; give the process and its port."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVICE, cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield process, int(await process.stdout.readline())
    finally:
        process.kill()
        await process.wait()


async def test_a_running_call_ends_long_before_its_deadline():
    async with (
        service() as (process, port),
        open_channel(f"127.0.0.1:{port}", max_message_bytes=1 << 20) as channel,
    ):
        call = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=50)
        await call.read()
        os.kill(process.pid, signal.SIGSTOP)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call.read()
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "ping timeout" in raised.value.details().lower()
