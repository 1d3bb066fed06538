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

import yaml

from deploy.local.probing import probe_health
from pagantic_common.telemetry.names import READINESS

START_S = 120.0
PAUSE_S = 0.2
ENVOY_EXAMPLE = Path(__file__).parents[3] / "deploy" / "examples" / "envoy.yaml"


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
    """Return Envoy's configuration: that of the example, for these replicas, with one of its policies."""
    config = yaml.safe_load(ENVOY_EXAMPLE.read_text(encoding="utf-8"))
    del config["admin"]
    (listener,) = config["static_resources"]["listeners"]
    (cluster,) = config["static_resources"]["clusters"]
    listener["address"]["socket_address"]["port_value"] = port
    cluster["lb_policy"] = policy
    if policy != "RING_HASH":
        del cluster["common_lb_config"]["consistent_hashing_lb_config"]
    endpoints = [
        {"endpoint": {"address": {"socket_address": {"address": host, "port_value": int(number)}}}}
        for host, _, number in (address.rpartition(":") for address in addresses)
    ]
    cluster["load_assignment"]["endpoints"] = [{"lb_endpoints": endpoints}]
    return json.dumps(config)
