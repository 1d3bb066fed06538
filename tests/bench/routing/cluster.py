"""Replicas of the inference service as processes, each on an address of its own, and what stands before them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from deploy.local.probing import probe_health
from pagantic_common.telemetry.names import READINESS

START_S = 120.0
PAUSE_S = 0.2
_FILTERS = "type.googleapis.com/envoy.extensions.filters"


@contextmanager
def running(command: Sequence[str], environment: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process, which ends with the block."""
    with log.open("ab") as file:
        process = subprocess.Popen(command, env={**os.environ, **environment}, stdout=file, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def replica_addresses(count: int, port: int) -> list[str]:
    """Return an address of the loopback interface for each replica."""
    return [f"127.0.1.{1 + index}:{port}" for index in range(count)]


def replica_command(address: str, settings: Mapping[str, str], *, is_paced: bool) -> tuple[list[str], dict[str, str]]:
    """Return the command of a replica and its environment."""
    host, _, port = address.rpartition(":")
    module = "tests.bench.routing.paced_service" if is_paced else "services.inference"
    own = {
        "HOST": host,
        "PORT": port,
        "AUTH": "none",
        "TUNING": "false",
        "SELF_CHECK": "false",
        "THREADS": "1",
        "SPIN_COUNT": "0",
        "EMBEDDING_MODEL": "none",
        "DRAFTING": "false",
        **settings,
    }
    return [sys.executable, "-m", module], {f"PAGANTIC_INFERENCE_{name}": value for name, value in own.items()}


def wait_until_serving(address: str, log: Path) -> None:
    """Return when a service is ready; raises TimeoutError."""
    end_s = time.monotonic() + START_S
    while probe_health(address, READINESS) != "SERVING":
        if time.monotonic() > end_s:
            raise TimeoutError(f"{address} does not serve: see {log}")
        time.sleep(PAUSE_S)


def envoy_config(addresses: Sequence[str], port: int, policy: str) -> str:
    """Return Envoy's configuration: a listener before the replicas, with one of its policies."""
    endpoints = [
        {"endpoint": {"address": {"socket_address": {"address": host, "port_value": int(number)}}}}
        for host, _, number in (address.rpartition(":") for address in addresses)
    ]
    http2 = {
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": {"http2_protocol_options": {}},
        }
    }
    cluster = {
        "name": "inference",
        "type": "STATIC",
        "lb_policy": policy,
        "typed_extension_protocol_options": http2,
        "load_assignment": {"cluster_name": "inference", "endpoints": [{"lb_endpoints": endpoints}]},
    }
    if policy == "RING_HASH":
        cluster["common_lb_config"] = {"consistent_hashing_lb_config": {"hash_balance_factor": 125}}
    route = {
        "match": {"prefix": "/"},
        "route": {
            "cluster": "inference",
            "timeout": "0s",
            "hash_policy": [{"header": {"header_name": "x-prefix"}}],
        },
    }
    manager = {
        "@type": f"{_FILTERS}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "in",
        "codec_type": "AUTO",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{_FILTERS}.http.router.v3.Router"},
            }
        ],
    }
    listener = {
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": port}},
        "filter_chains": [
            {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
        ],
    }
    return json.dumps({"static_resources": {"listeners": [listener], "clusters": [cluster]}})
