"""`python -m tests.bench.telemetry`: the processor time that spans and metrics cost, and spans without their parents.

The services run several times side by side: with telemetry, without it, and from another checkout if one is given. Each
answers the same requests of many clients in turn, round by round, while the others idle. It prints the processor time
of their processes, and the medians of the rounds' ratios, because other work on the machine slows down a whole round.
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
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from deploy.local.supervision import Supervision
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.client import AsyncClient
from tests.e2e.conftest import AREAS, ROOT, System
from tests.support.live_requests import request
from tests.support.ports import free_ports

OFF, ON, BEFORE = "off", "on", "before"


def main() -> None:
    """Measure, and print each round, the medians of each service, and those of the ratios to telemetry that is off."""
    options = _parse()
    rounds: list[dict[str, dict[str, float]]] = []
    with _collector() as (process, port):
        with ExitStack() as stack:
            systems = {mode: stack.enter_context(_system(mode, port, options.before)) for mode in options.modes}
            for system in systems.values():
                asyncio.run(_ask(system, options, options.clients))  # The first requests load what later ones find.
            for number in range(options.rounds):
                order = options.modes if number % 2 == 0 else options.modes[::-1]
                measured = {mode: _measure(systems[mode], options) for mode in order}
                rounds.append(measured)
                shown = ", ".join(f"{mode} {sum(measured[mode].values()):.2f}" for mode in options.modes)
                print(f"round {number + 1}: {shown} ms of processor time a request")  # noqa: T201
            if ON in systems:
                print(f"{sum(map(_series_at, systems[ON].metrics_ports))} series")  # noqa: T201
        print(_count(process))  # noqa: T201 - The systems have ended, so that every span has been sent.
    for line in _summary(rounds, options.modes):
        print(line)  # noqa: T201


def _summary(rounds: list[dict[str, dict[str, float]]], modes: list[str]) -> Iterator[str]:
    for area in (*AREAS, "all"):
        times = {mode: [_of(measured[mode], area) for measured in rounds] for mode in modes}
        line = f"{area:<12} " + ", ".join(f"{mode} {statistics.median(times[mode]):.3f} ms" for mode in modes)
        for mode in modes:
            if mode != OFF and OFF in modes and min(times[OFF]) > 0:
                ratios = [one / off for one, off in zip(times[mode], times[OFF], strict=True)]
                low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else (ratios * 3)
                line += f"; {mode} / off {statistics.median(ratios):.3f} (quartiles {low:.3f} to {high:.3f})"
        yield line


def _of(measured: dict[str, float], area: str) -> float:
    return sum(measured.values()) if area == "all" else measured[area]


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=128, help="of one round")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--modes", nargs="+", choices=(OFF, ON), default=[OFF, ON])
    parser.add_argument("--before", type=Path, help="another checkout, with an environment in its .venv")
    options = parser.parse_args()
    if options.before is not None:
        options.modes.append(BEFORE)
    return options


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


class _Measured(System):
    """The services of a checkout, with telemetry or without."""

    def __init__(self, state: Path, root: Path) -> None:
        super().__init__(state, root)
        self.python = str(root / ".venv" / "bin" / "python")
        self.metrics_ports: list[int] = []

    def up(self) -> None:
        """Start them."""
        self.run(self.python, "-m", "deploy.local", "up")

    def down(self) -> None:
        """Stop them."""
        self.run(self.python, "-m", "deploy.local", "down")

    def spent_s(self) -> dict[str, float]:
        """Return the processor time that each has used."""
        processes = Supervision(self.state).processes()
        return {area: _spent_by(psutil.Process(processes[area].pid)) for area in AREAS}


@contextmanager
def _system(mode: str, collector_port: int, before: Path | None) -> Iterator[_Measured]:
    with tempfile.TemporaryDirectory() as folder:
        system = _Measured(Path(folder), before if mode == BEFORE and before is not None else ROOT)
        system.environment["PAGANTIC_INFERENCE_TUNING"] = "false"
        if mode == ON:
            system.metrics_ports = free_ports(len(AREAS))
            system.environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{collector_port}"
            for area, port in zip(AREAS, system.metrics_ports, strict=True):
                system.environment[f"PAGANTIC_{area.upper()}_METRICS_PORT"] = str(port)
        system.up()
        try:
            yield system
        finally:
            system.down()


def _measure(system: _Measured, options: argparse.Namespace) -> dict[str, float]:
    """Return the milliseconds of processor time for each request, by service."""
    before = system.spent_s()
    asyncio.run(_ask(system, options, options.requests))
    after = system.spent_s()
    return {area: (after[area] - before[area]) * 1000 / options.requests for area in AREAS}


def _spent_by(process: psutil.Process) -> float:
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return sum(one.user + one.system for one in times)


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
