"""The ports of a service at every form of its host, and the errors where a port cannot be opened."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

from deploy.local.areas import Area
from deploy.local.probing import find_taken_ports, probe_health
from pagantic_common.rpc.process import program
from pagantic_common.rpc.process.program import run_service
from pagantic_common.settings import ServiceSettings
from pagantic_common.telemetry.names import LIVENESS
from tests.support.killing import wait_until
from tests.support.ports import free_ports

SERVICE = """
import contextlib, sys
from pagantic_common.rpc.process.program import run_service
from pagantic_common.settings import ServiceSettings

@contextlib.asynccontextmanager
async def open_app():
    yield []

host, port, admin_port, metrics_port = sys.argv[1], *map(int, sys.argv[2:])
settings = ServiceSettings(host=host, port=port, admin_port=admin_port, metrics_port=metrics_port, auth="none")
run_service("tools", settings, open_app)
"""
HOSTS = {"::1": "[::1]", "[::1]": "[::1]", "::": "[::1]", "[::]": "127.0.0.1", "localhost": "127.0.0.1"}
PORTS = ("port", "admin_port", "metrics_port")


@contextlib.contextmanager
def running(host, ports):
    service = subprocess.Popen([sys.executable, "-c", SERVICE, host, *map(str, ports)], stderr=subprocess.DEVNULL)
    try:
        yield service
    finally:
        service.kill()
        service.wait()


@pytest.mark.parametrize("host", HOSTS)
def test_every_port_of_a_service_is_open_at_every_form_of_host(host):
    if ":" in host and not socket.has_ipv6:
        pytest.skip("this machine has no IPv6: enable it to run this test")
    port, admin_port, metrics_port = free_ports(3)
    with running(host, (port, admin_port, metrics_port)) as service:
        for open_port in (port, admin_port):
            address = f"{HOSTS[host]}:{open_port}"
            wait_until(lambda at=address: probe_health(at, LIVENESS) == "SERVING", address)
        with urllib.request.urlopen(f"http://{HOSTS[host]}:{metrics_port}/metrics", timeout=10) as reply:
            assert b"pagantic_rpc_max_calls" in reply.read()
        assert probe_health(Area("tools", host, port).address) == "SERVING"
        service.send_signal(signal.SIGTERM)
        assert service.wait(20) == 0


def refusal_to_start(capsys, monkeypatch, **settings):
    """Return the words of a service that cannot start."""
    # It would write the records of all later tests to what stands for stderr in this one.
    monkeypatch.setattr(program, "set_up_logging", lambda *_args, **_options: None)

    @contextlib.asynccontextmanager
    async def open_app():
        yield []

    with pytest.raises(SystemExit):
        run_service("tools", ServiceSettings(**{"port": 0, **settings}), open_app)
    return capsys.readouterr().err


@pytest.mark.parametrize("setting", PORTS)
@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "[::1]"])
def test_a_port_that_is_taken_is_named_by_its_setting(setting, host, capsys, monkeypatch):
    bare = host.strip("[]")
    with socket.create_server((bare, 0), family=socket.AF_INET6 if ":" in bare else socket.AF_INET) as taken:
        port = taken.getsockname()[1]
        words = refusal_to_start(capsys, monkeypatch, host=host, **{setting: port})
    address = f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"
    assert f"cannot listen on {address}" in words
    assert "the port is in use" in words
    assert f"set PAGANTIC_TOOLS_{setting.upper()}, or stop the process that listens there" in words


@pytest.mark.parametrize("setting", PORTS)
@pytest.mark.parametrize("host", ["192.0.2.1", "2001:db8::1", "[2001:db8::1]", "no-such-host.invalid"])
def test_a_host_that_is_not_this_machines_is_named_by_its_setting(setting, host, capsys, monkeypatch):
    (port,) = free_ports(1)
    words = refusal_to_start(capsys, monkeypatch, host=host, auth="none", **{setting: port})
    assert "set PAGANTIC_TOOLS_HOST or PAGANTIC_HOST to an address of this machine" in words
    assert "_PORT" not in words
    assert "in use" not in words
    (problem,) = find_taken_ports([Area("tools", host, port)])
    assert "set PAGANTIC_TOOLS_HOST or PAGANTIC_HOST to an address of this machine" in problem


def test_a_port_that_needs_rights_is_named_by_its_setting(capsys, monkeypatch):
    if os.geteuid() == 0:  # root may use every port: the system's refusal is given
        monkeypatch.setattr(socket, "create_server", _refuse)
        monkeypatch.setattr("grpc.aio._server.Server.add_insecure_port", _refuse_port)
    words = refusal_to_start(capsys, monkeypatch, port=80)
    assert "cannot listen on 127.0.0.1:80: permission denied; set PAGANTIC_TOOLS_PORT" in words


def _refuse(*_arguments, **_options):
    raise PermissionError(13, "Permission denied")


def _refuse_port(*_arguments):
    raise RuntimeError("Failed to bind to address")
