"""`python -m tests.bench.telemetry`: the processor time that spans and metrics cost, and spans without their parents.

It runs the services of this machine with telemetry off and on in turn, each time with the same requests of many
clients, and counts the processor time of the services' processes for each request.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from deploy.local.supervision import Supervision
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.client import AsyncClient
from tests.e2e.conftest import AREAS, System
from tests.support.live_requests import request
from tests.support.ports import free_ports

MODES = ("off", "on")


def main() -> None:
    """Measure, and print each round and the medians."""
    options = _parse()
    shares: dict[str, list[float]] = {"off": [], "on": []}
    for number in range(options.rounds):
        for mode in options.modes if number % 2 == 0 else options.modes[::-1]:
            with _collector() as (process, port):
                with _system(mode, port) as (system, metrics_ports):
                    cpu_ms, series = _measure(system, metrics_ports, options)
                counts = _count(process)  # The system has ended, so that every span has been sent.
            shares[mode].append(cpu_ms)
            print(f"round {number + 1} {mode}: {cpu_ms:.2f} ms of processor time a request {series} {counts}")  # noqa: T201
    if len(options.modes) < len(MODES):
        return
    off, on = statistics.median(shares["off"]), statistics.median(shares["on"])
    print(f"median off {off:.2f} ms, on {on:.2f} ms: {on / off - 1:+.1%}")  # noqa: T201


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=640)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    return parser.parse_args()


@contextmanager
def _collector() -> Iterator[tuple[subprocess.Popen[str], int]]:
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "tests.support.counting_collector", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process, port
        finally:
            process.terminate()


def _count(process: subprocess.Popen[str]) -> str:
    """Return what the collector counted."""
    process.send_signal(signal.SIGUSR1)
    assert process.stdout is not None
    return process.stdout.readline().strip()


@contextmanager
def _system(mode: str, collector_port: int) -> Iterator[tuple[System, list[int]]]:
    with tempfile.TemporaryDirectory() as folder:
        system = System(Path(folder))
        ports = free_ports(len(AREAS))
        system.environment["PAGANTIC_INFERENCE_TUNING"] = "false"
        if mode == "on":
            system.environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{collector_port}"
            for area, port in zip(AREAS, ports, strict=True):
                system.environment[f"PAGANTIC_{area.upper()}_METRICS_PORT"] = str(port)
        system.run(sys.executable, "-m", "deploy.local", "up")
        try:
            yield system, ports if mode == "on" else []
        finally:
            system.run(sys.executable, "-m", "deploy.local", "down")


def _measure(system: System, metrics_ports: list[int], options: argparse.Namespace) -> tuple[float, str]:
    """Return the milliseconds of processor time for each request, and the number of series of the metrics."""
    asyncio.run(_ask(system, options, options.clients))  # warm
    processes = [psutil.Process(one.pid) for one in Supervision(system.state).processes().values() if one.pid]
    before_s = _spent(processes)
    asyncio.run(_ask(system, options, options.requests))
    spent_s = _spent(processes) - before_s
    series = ""
    if metrics_ports:
        series = f"{sum(_series_at(port) for port in metrics_ports)} series"
    return spent_s * 1000 / options.requests, series


def _spent(processes: list[psutil.Process]) -> float:
    total_s = 0.0
    for process in processes:
        for one in (process, *process.children(recursive=True)):
            times = one.cpu_times()
            total_s += times.user + times.system
    return total_s


def _series_at(port: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
        return sum(not line.startswith(b"#") for line in response)


async def _ask(system: System, options: argparse.Namespace, count: int) -> None:
    places = asyncio.Semaphore(options.clients)
    async with AsyncClient(system.address("orchestrator"), timeout_s=300) as client:

        async def one(number: int) -> None:
            async with places:
                text = f"Say number {number}."
                await client.execute(
                    request(text, execution_pb2.MODE_CHAT, max_tokens=options.max_tokens, timeout_s=200)
                )

        await asyncio.gather(*(one(number) for number in range(count)))


if __name__ == "__main__":
    main()
