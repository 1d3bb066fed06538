"""The port of the MCP server's probes, and the errors where it cannot be opened."""

from __future__ import annotations

import asyncio
import socket

import pytest

from deploy.local.probing import probe_health
from gateway.mcp.http.app import PATH
from gateway.mcp.settings import McpSettings
from gateway.web.probes import answering_probes
from gateway.web.serving import serve_app
from pagantic_common.telemetry.names import LIVENESS
from tests.support.ports import free_ports

HOSTS = {"::1": "[::1]", "[::1]": "[::1]", "::": "[::1]", "127.0.0.1": "127.0.0.1", "localhost": "127.0.0.1"}


def settings_of(host, port):
    return McpSettings(host=host, port=0, admin_port=port, auth="none")


def has_ipv6():
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.parametrize("host", HOSTS)
async def test_probes_are_answered_at_every_form_of_host(host):
    if ":" in host and not has_ipv6():
        pytest.skip("this machine has no IPv6: enable it to run this test")
    (port,) = free_ports(1)
    async with answering_probes(settings_of(host, port)):
        assert await asyncio.to_thread(probe_health, f"{HOSTS[host]}:{port}", LIVENESS) == "SERVING"


async def test_a_port_that_is_taken_and_an_address_of_another_machine_are_told_apart():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refusal = rf"127\.0\.0\.1:{port} for probes: the port is in use: change PAGANTIC_MCP_ADMIN_PORT"
        with pytest.raises(OSError, match=refusal):
            await answering_probes(settings_of("127.0.0.1", port)).__aenter__()
    refusal = rf"192\.0\.2\.1:{port} for probes: cannot assign requested address: change PAGANTIC_MCP_HOST"
    with pytest.raises(OSError, match=refusal):
        await answering_probes(settings_of("192.0.2.1", port)).__aenter__()


async def test_nothing_is_announced_before_every_port_is_open():
    announced = []
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = settings_of("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(OSError, match="for probes"):
            await serve_app(None, settings, PATH, announced.append)
    assert not announced
