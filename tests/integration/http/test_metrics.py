"""Metrics of the gateway, as Prometheus reads them from a process of its own."""

import os
import socket
import subprocess
import sys

import httpx
import pytest

from tests.support.gateway_process import serving_gateway
from tests.support.http_app import chat_body
from tests.support.mcp_app import deployment
from tests.support.ports import free_ports
from tests.support.service_process import ROOT

DURATION = "http_server_request_duration_seconds_count"


def counted(text, name, **labels):
    """Return the value of a metric with these labels, 0 where there is none."""
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    lines = [line for line in text.splitlines() if line.startswith(f"{name}{{") and all(one in line for one in wanted)]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


async def test_requests_are_counted_by_the_template_of_their_path(tmp_path):
    (port,) = free_ports(1)
    async with deployment(tmp_path) as world, httpx.AsyncClient(timeout=30) as http:
        environment = os.environ | {"PAGANTIC_ADDRESS": world.address, "PAGANTIC_HTTP_METRICS_PORT": str(port)}
        with serving_gateway(environment) as url:
            await http.post(f"{url}/chat/completions", json=chat_body())
            await http.post(f"{url}/chat/completions", json=chat_body(stream=True))
            for name in ("one", "two"):
                await http.get(f"{url}/responses/{name}")
            await http.get(f"{url}/secret-path")
            await http.request("BREW", f"{url}/models")
            text = (await http.get(f"http://127.0.0.1:{port}/metrics")).text
            public = await http.get(url.replace("/v1", "/metrics"))
    chat, response = "/v1/chat/completions", "/v1/responses/{response_id}"
    ok = {"http_request_method": "POST", "http_response_status_code": 200}
    assert counted(text, DURATION, http_route=chat, **ok) == 2
    assert counted(text, DURATION, http_route=response, http_response_status_code=404) == 2
    assert counted(text, DURATION, http_route="", http_response_status_code=404) == 1
    assert counted(text, DURATION, http_request_method="_OTHER", http_response_status_code=405) == 1
    assert counted(text, "pagantic_http_first_chunk_duration_seconds_count", http_route=chat) == 1
    assert counted(text, "pagantic_http_max_requests") == 256
    assert "pagantic_http_running_requests{" in text
    assert counted(text, "pagantic_http_open_streams") == 0
    assert not {"secret-path", "BREW", "/one"} & set(text.split('"'))
    assert public.status_code == 404


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_metrics_are_read_at_an_ipv6_address(host):
    (port,) = free_ports(1)
    with serving_gateway(os.environ | {"PAGANTIC_HTTP_HOST": host, "PAGANTIC_HTTP_METRICS_PORT": str(port)}) as url:
        assert url.startswith("http://[::1]:")
        assert "pagantic_http_max_requests" in httpx.get(f"http://[::1]:{port}/metrics").text


def test_a_port_for_metrics_that_is_taken_stops_the_gateway_with_what_to_change():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = serve_once(os.environ | {"PAGANTIC_HTTP_METRICS_PORT": str(port)})
    assert done.returncode != 0
    assert f"127.0.0.1:{port}" in done.stderr
    assert "PAGANTIC_HTTP_METRICS_PORT" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_that_is_taken_is_named_with_how_to_choose_another():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = serve_once(os.environ, port)
    assert done.returncode == 1
    assert done.stderr.startswith(f"FAILED: cannot listen on 127.0.0.1:{port}: the port is in use: choose another")
    assert "--port or PAGANTIC_HTTP_PORT" in done.stderr


def serve_once(environment, port=0):
    """Run a gateway that is expected to end by itself."""
    command = [sys.executable, "-m", "gateway.cli.main", "serve", "--port", str(port)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=30, check=False)
