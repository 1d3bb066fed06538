"""How many requests 1 to 4 orchestrators answer on one PostgreSQL: `python -m tests.bench.orchestrators`.

The inference answers at once, in a process of its own. The processor time of each part tells why it stops growing,
and what a request costs.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import psutil
import psycopg

from pagantic.inference.v1 import inference_service_pb2_grpc as inference_grpc
from pagantic.orchestrator.v1 import orchestrator_service_pb2_grpc
from pagantic_common.client import chat_request
from tests.bench.orchestrator import InstantInference
from tests.bench.ours import running_service
from tests.support.postgres import find_programs, running_postgres

GROWTH = 1.1  # less is none
BUSY = 0.9  # of a core, or of all cores
WARM_UP_S = 2.0
PARTS = ("orchestrators", "PostgreSQL")


class Run(NamedTuple):
    """Requests per second, the cores that each part used, and the bytes that the database wrote for a request.

    "Others" are processes that have no part in it.
    """

    per_s: float
    cores: dict[str, float]
    stored_bytes: float
    log_bytes: float

    def cost(self) -> str:
        """Return what a request cost the parts that a system has."""
        times = ", ".join(f"{self.cores[name] / self.per_s * 1000:.1f} ms of {name}" for name in PARTS)
        return f"{times}; {self.stored_bytes / 1024:.1f} KiB stored, {self.log_bytes / 1024:.1f} KiB of log"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.orchestrators", description=__doc__)
    parser.add_argument("--most", type=int, default=4, help="most orchestrators")
    parser.add_argument("--clients", type=int, default=64, help="callers, each with one call at a time")
    parser.add_argument("--seconds", type=float, default=8.0, help="seconds of each run")
    parser.add_argument("--serve-inference", action="store_true", help="serve the inference, and print its port")
    return parser.parse_args()


async def _serve_inference() -> None:
    server = grpc.aio.server()
    inference_grpc.add_InferenceServiceServicer_to_server(InstantInference(), server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)  # noqa: T201
    await server.wait_for_termination()


def _cpu_s(processes: Sequence[psutil.Process]) -> float:
    times = [process.cpu_times() for process in processes if process.is_running()]
    return sum(one.user + one.system for one in times)


def _postgres(url: str) -> psutil.Process:
    with psycopg.connect(url) as connection:
        row = connection.execute("SHOW data_directory").fetchone()
    return psutil.Process(int((Path(row[0] if row else "") / "postmaster.pid").read_text().split()[0]))


def _written(url: str) -> tuple[int, int]:
    """Return the bytes of the database, and of all that its write-ahead log has had."""
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "SELECT pg_database_size(current_database()), pg_current_wal_lsn() - '0/0'::pg_lsn"
        ).fetchone()
    stored, log = row or (0, 0)
    return int(stored), int(log)


async def _load(stubs: Sequence[Any], clients: int, seconds: float) -> float:
    """Return the requests per second of all callers together."""
    count, end_s = 0, time.monotonic() + seconds

    async def call(stub: Any) -> None:
        nonlocal count
        while time.monotonic() < end_s:
            response = await stub.Execute(chat_request("What is a lighthouse for?", tools=[]))
            if not response.content:
                raise SystemExit(f"no answer: {response}")
            count += 1

    started_s = time.monotonic()
    next_stub = cycle(stubs)
    await asyncio.gather(*(call(next(next_stub)) for _ in range(clients)))
    return count / (time.monotonic() - started_s)


async def _run(
    addresses: Sequence[str],
    parts: Callable[[], dict[str, list[psutil.Process]]],
    written: Callable[[], tuple[int, int]],
    options: argparse.Namespace,
) -> Run:
    async with AsyncExitStack() as stack:
        channels = [await stack.enter_async_context(grpc.aio.insecure_channel(address)) for address in addresses]
        stubs = [orchestrator_service_pb2_grpc.OrchestratorServiceStub(one) for one in channels]  # type: ignore[no-untyped-call]
        await _load(stubs, options.clients, WARM_UP_S)
        found, (stored, log) = parts(), written()
        before, started_s = {name: _cpu_s(some) for name, some in found.items()}, time.monotonic()
        idle_s = psutil.cpu_times().idle
        per_s = await _load(stubs, options.clients, options.seconds)
        took_s = time.monotonic() - started_s
        cores = {name: (_cpu_s(some) - before[name]) / took_s for name, some in found.items()}
        busy = (os.cpu_count() or 1) - (psutil.cpu_times().idle - idle_s) / took_s
        count, (stored_then, log_then) = per_s * took_s, written()
        cores["others"] = max(0.0, busy - sum(cores.values()))
        return Run(per_s, cores, (stored_then - stored) / count, (log_then - log) / count)


def _measure(count: int, inference: subprocess.Popen[str], address: str, options: argparse.Namespace) -> Run:
    programs = find_programs()
    if programs is None:
        raise SystemExit("PostgreSQL is not installed: install Debian's package postgresql")
    with ExitStack() as stack:
        url = stack.enter_context(running_postgres(programs, is_safe=True))
        started = [
            stack.enter_context(
                running_service(
                    "orchestrator",
                    journal_url=url,
                    instance_id=f"bench{number}",
                    inference_address=address,
                    constraint_address=address,
                )
            )
            for number in range(count)
        ]
        server = _postgres(url)

        def parts() -> dict[str, list[psutil.Process]]:
            return {
                "orchestrators": [psutil.Process(pid) for _, pid in started],
                "PostgreSQL": [server, *server.children()],
                "inference": [psutil.Process(inference.pid)],
                "load": [psutil.Process()],
            }

        return asyncio.run(_run([address for address, _ in started], parts, lambda: _written(url), options))


def _cause(count: int, run: Run) -> str:
    cores, used = os.cpu_count() or 1, sum(run.cores.values())
    each = {"an orchestrator": run.cores["orchestrators"] / count}
    each |= {f"the {name}": run.cores[name] for name in ("inference", "load")}
    full = [name for name, share in each.items() if share >= BUSY]
    if full:
        return f"{' and '.join(full)} used a core, which is all that one process can"
    if used >= BUSY * cores:
        most = max(run.cores, key=lambda name: run.cores[name])
        return f"the {cores} cores were used up ({used:.2f}), most by {most} ({run.cores[most]:.2f})"
    return f"{used:.2f} of {cores} cores were used: what is left is waiting for commits"


def main() -> None:
    """Measure each number of orchestrators, and say where it stops growing."""
    options = _options()
    if options.serve_inference:
        asyncio.run(_serve_inference())
        return
    command = [sys.executable, "-m", "tests.bench.orchestrators", "--serve-inference"]
    runs: list[Run] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as inference:
        try:
            port = inference.stdout.readline().strip() if inference.stdout else ""
            for count in range(1, options.most + 1):
                runs.append(_measure(count, inference, f"127.0.0.1:{port}", options))
                cores = ", ".join(f"{name} {share:.2f}" for name, share in runs[-1].cores.items())
                print(f"{count} orchestrators: {runs[-1].per_s:6.0f} requests/s; cores: {cores}", flush=True)  # noqa: T201
        finally:
            inference.terminate()
    stop = next((index for index in range(1, len(runs)) if runs[index].per_s < GROWTH * runs[index - 1].per_s), None)
    print(f"a request costs {runs[0].cost()}")  # noqa: T201
    if stop is None:
        print(f"it grows up to {len(runs)}")  # noqa: T201
    else:
        print(f"it stops growing after {stop}: {_cause(stop, runs[stop - 1])}")  # noqa: T201


if __name__ == "__main__":
    main()
