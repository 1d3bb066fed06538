"""Checks from outside the process whether a service is healthy and whether a port is free."""

from __future__ import annotations

import errno
import os
import socket
import urllib.error
import urllib.request
from collections.abc import Iterable
from http.client import HTTPException

import psutil

from deploy.local.areas import GATEWAY, Area
from pagantic_common.domain.addresses import address_of, bare_host
from pagantic_common.rpc.probe import ask_health
from pagantic_common.rpc.process.listening import is_host_at_fault, refusal_of
from pagantic_common.telemetry.names import READINESS

GATEWAY_PROBE_S = 3.0


def probe_area(area: Area) -> str:
    """Return the health of a service, using TLS if its own variable, or else the shared variable, enables it."""
    if area.name == GATEWAY:
        return _probe_gateway(area)
    own = f"PAGANTIC_{area.name.upper()}_TLS"
    environment = {
        name.replace(own, "PAGANTIC_TLS"): value for name, value in os.environ.items() if name.startswith(own)
    }
    return ask_health(area.address, READINESS, {**os.environ, **environment}) or "UNREACHABLE"


def probe_health(address: str, name: str = READINESS) -> str:
    """Return SERVING, NOT_SERVING, or UNREACHABLE if there is no response within a second."""
    return ask_health(address, name) or "UNREACHABLE"


def _probe_gateway(gateway: Area) -> str:
    """Return the health of the HTTP gateway, which is ready if its orchestrator is ready."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{gateway.address}/readyz", timeout=GATEWAY_PROBE_S):
            return "SERVING"
    except urllib.error.HTTPError:
        return "NOT_SERVING"
    except (OSError, HTTPException):
        return "UNREACHABLE"


def find_taken_ports(areas: Iterable[Area]) -> list[str]:
    """Return a sentence for each service whose port cannot be used."""
    return [problem for area in areas if (problem := _port_problem(area))]


def _port_problem(area: Area) -> str:
    setting = f"set PAGANTIC_{area.name.upper()}_PORT, or stop the process that listens there"
    try:
        family, _, _, _, address = socket.getaddrinfo(bare_host(area.host), area.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return f"port {area.port} of the {area.name} service is in use{_owner(area.port)}: {setting}"
        if is_host_at_fault(error):
            setting = f"set PAGANTIC_{area.name.upper()}_HOST or PAGANTIC_HOST to an address of this machine"
        place = address_of(area.host, area.port)
        return f"the {area.name} service cannot listen on {place} ({refusal_of(error)}): {setting}"
    return ""


def _owner(port: int) -> str:
    try:
        for connection in psutil.net_connections("tcp"):
            is_listening = connection.status == psutil.CONN_LISTEN
            if is_listening and connection.laddr and connection.laddr.port == port and connection.pid:
                return f" by {psutil.Process(connection.pid).name()!r} (pid {connection.pid})"
    except psutil.Error:
        pass
    return ""
