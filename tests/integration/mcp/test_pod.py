"""The MCP server as its Kubernetes manifest starts it, and the probes of it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from deploy.local.probing import probe_health
from pagantic_common.telemetry.names import LIVENESS, READINESS
from tests.support.manifests import FOLDER, container_of, environment_of
from tests.support.mcp_app import deployment, initialize
from tests.support.pages import ROOT
from tests.support.ports import free_ports

MCP = FOLDER / "mcp"
HEADERS = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
KEY = {"authorization": "Bearer pag_of_a_caller"}


@asynccontextmanager
async def pod(folder, address, **settings):
    """Run the container's command with its environment on free ports; gives the URL and the address of the probes."""
    port, admin_port = free_ports(2)
    own = {"PORT": port, "ADMIN_PORT": admin_port, **settings}
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "HOME": str(folder / "none"),
        **environment_of("mcp", MCP),
        **{f"PAGANTIC_MCP_{name}": str(value) for name, value in own.items()},
        "PAGANTIC_ADDRESS": address,
    }
    command = [sys.executable, "-m", *container_of("mcp", MCP)["args"]]
    process = subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.DEVNULL)  # noqa: ASYNC220
    probed = f"127.0.0.1:{admin_port}"
    try:
        await until_ready(process, probed)
        yield f"http://127.0.0.1:{port}/mcp", probed
    finally:
        process.send_signal(signal.SIGTERM)
        status = await asyncio.to_thread(process.wait, 30)
    assert status in (0, -signal.SIGTERM)


async def until_ready(process, probed):
    async with asyncio.timeout(60):
        while await asyncio.to_thread(probe_health, probed, READINESS) != "SERVING":
            assert process.poll() is None
            await asyncio.sleep(0.1)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "mcp.pagantic.svc:8090", **KEY}, 200),
        ({"host": "mcp:8090"}, 401),
        ({"host": "evil.example", **KEY}, 421),
        ({"host": "mcp:8090", "origin": "https://evil.example", **KEY}, 403),
    ],
)
async def test_callers_get_in_by_the_services_name_and_with_a_key(tmp_path, headers, status):
    async with deployment(tmp_path) as world, pod(tmp_path, world.address) as (url, _), httpx.AsyncClient() as http:
        response = await http.post(url, json=initialize(), headers=HEADERS | headers)
        assert response.status_code == status


async def test_probes_are_answered_while_callers_hold_every_connection(tmp_path):
    async with (
        pod(tmp_path, "127.0.0.1:1", MAX_CONNECTIONS=1, AUTH="none") as (url, probed),
        httpx.AsyncClient() as http,
    ):
        port = httpx.URL(url).port
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n")  # The body does not come.
        await asyncio.sleep(0.2)
        with pytest.raises(httpx.TransportError):
            await http.post(url, json=initialize(), headers=HEADERS)
        for name in (LIVENESS, READINESS):
            assert await asyncio.to_thread(probe_health, probed, name) == "SERVING"
        writer.close()


async def test_watches_keep_no_probe_from_its_answer(tmp_path):
    async with pod(tmp_path, "127.0.0.1:1") as (_, probed), grpc.aio.insecure_channel(probed) as channel:
        request = health_pb2.HealthCheckRequest(service=LIVENESS)
        watches = [health_pb2_grpc.HealthStub(channel).Watch(request) for _ in range(200)]
        async with asyncio.timeout(20):
            codes = {await watch.code() for watch in watches}
        assert grpc.StatusCode.UNIMPLEMENTED in codes
        assert await asyncio.to_thread(probe_health, probed, LIVENESS) == "SERVING"
