"""What the HTTP gateway adds to a streamed chat, beside LiteLLM's proxy: `python -m tests.bench.gateway`.

An engine in a process of its own says words at a pace. A real orchestrator asks it, and so does LiteLLM's proxy if its
program is given. What a proxy adds is measured against the same request one door further in: for the gateway at the
orchestrator's port, for LiteLLM at the engine's own HTTP. Its processor time is that of its process alone.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from pagantic_common.client import AsyncClient, chat_request
from tests.bench.http_client import HttpClient
from tests.bench.load import BenchError
from tests.bench.ours import ROOT, running_service
from tests.support.ports import free_ports

CHUNKS = 20
PAUSE_S = 0.05  # An engine that serves many streams may give each of them 20 tokens in a second.
ROUNDS = 6  # Each stream makes so many requests in one measurement.
START_S = 120.0
_QUESTION = "What is a lighthouse for?"
_BODY = {"model": "paced", "stream": True, "messages": [{"role": "user", "content": _QUESTION}]}
_MILLION = 1024 * 1024

Times = list[float]  # Each is the time from the request to one of its chunks, in seconds.
Ask = Callable[[], Awaitable[Times]]


@dataclass(frozen=True, slots=True)
class Measured:
    """One door under one load."""

    firsts: Times
    lasts: Times
    chunks_per_s: float
    requests_per_cpu_s: float


def _by_http(url: str) -> Ask:
    client = HttpClient(url)

    async def ask() -> Times:
        started_s = time.perf_counter()
        events = client.stream("/v1/chat/completions", _BODY)
        times = [time.perf_counter() - started_s async for event in events if _has_text(event)]
        return _checked(times, url)

    return ask


@asynccontextmanager
async def _by_grpc(address: str) -> AsyncIterator[Ask]:
    async with AsyncClient(address) as client:

        async def ask() -> Times:
            started_s = time.perf_counter()
            events = client.stream(chat_request(_QUESTION, tools=[]))
            times = [
                time.perf_counter() - started_s
                async for event in events
                if event.WhichOneof("event") == "content_delta"
            ]
            return _checked(times, address)

        yield ask


def _has_text(event: Any) -> bool:
    return bool(event["choices"] and event["choices"][0]["delta"].get("content"))


def _checked(times: Times, door: str) -> Times:
    if not times:
        raise BenchError(f"{door} answered without a word")
    return times


async def _measure(ask: Ask, streams: int, rounds: int, process: psutil.Process) -> Measured:
    """Ask from `streams` clients that never pause; they begin spread over the time between two words."""
    found: list[Times] = []

    async def client(number: int) -> None:
        await asyncio.sleep(PAUSE_S * number / streams)
        found.extend([await ask() for _ in range(rounds)])

    before_s, started_s = _cpu_s(process), time.perf_counter()
    await asyncio.gather(*(client(number) for number in range(streams)))
    took_s, cpu_s = time.perf_counter() - started_s, _cpu_s(process) - before_s
    chunks = sum(len(times) for times in found)
    firsts, lasts = sorted(times[0] for times in found), sorted(times[-1] for times in found)
    return Measured(firsts, lasts, chunks / took_s, len(found) / max(cpu_s, 0.01))


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


@contextmanager
def _program(command: list[str], **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a program; yields it and the first line that it prints, of whichever stream."""
    given = os.environ | environment
    with subprocess.Popen(
        command, cwd=ROOT, env=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield process, process.stdout.readline() if process.stdout else ""
        finally:
            process.terminate()


@contextmanager
def _gateway(address: str) -> Iterator[tuple[str, psutil.Process]]:
    command = [sys.executable, "-m", "gateway.cli.main", "serve", "--port", "0"]
    with _program(command, PAGANTIC_ADDRESS=address, PAGANTIC_HTTP_MODELS='{"*": ""}') as (process, line):
        yield line.split()[1].rstrip(";").removesuffix("/v1"), psutil.Process(process.pid)


@contextmanager
def _litellm(program: str, engine: str, folder: Path) -> Iterator[tuple[str, psutil.Process]]:
    config = folder / "litellm.yaml"
    parameters = f"{{model: openai/paced, api_base: {engine}/v1, api_key: none}}"
    config.write_text(f"model_list:\n  - model_name: paced\n    litellm_params: {parameters}\n")
    (port,) = free_ports(1)  # type: ignore[no-untyped-call]
    command = [program, "--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--telemetry", "False"]
    log = (folder / "litellm.log").open("w")
    chosen = {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_LOG": "ERROR",
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
    }
    with log, subprocess.Popen(command, env=os.environ | chosen, stdout=log, stderr=log) as process:
        try:
            yield f"http://127.0.0.1:{port}", psutil.Process(process.pid)
        finally:
            process.terminate()


async def _wait_for(ask: Ask) -> None:
    deadline_s = time.monotonic() + START_S
    while True:
        try:
            await ask()
        except (BenchError, OSError):
            if time.monotonic() > deadline_s:
                raise
            await asyncio.sleep(0.5)
        else:
            return


def _at(sorted_times: Times, share: float) -> float:
    return sorted_times[min(len(sorted_times) - 1, int(len(sorted_times) * share))] * 1000


def _row(name: str, streams: int, behind: list[Measured], through: list[Measured]) -> str:
    """Return the medians of what going through a proxy adds, over the runs."""

    def added(part: str, share: float) -> float:
        pairs = zip(behind, through, strict=True)
        return statistics.median(
            _at(getattr(there, part), share) - _at(getattr(here, part), share) for here, there in pairs
        )

    def at(part: str, share: float) -> float:
        return statistics.median(_at(getattr(one, part), share) for one in behind)

    added_ms = ", ".join(
        f"{added(f'{part}s', 0.5):.1f} and {added(f'{part}s', 0.99):.1f} ms to p50 {at(f'{part}s', 0.5):.0f} and p99"
        f" {at(f'{part}s', 0.99):.0f} of the {part} chunk"
        for part in ("first", "last")
    )
    chunks = statistics.median(one.chunks_per_s for one in through)
    per_cpu = statistics.median(one.requests_per_cpu_s for one in through)
    return (
        f"{name:9} {streams:3} streams: adds {added_ms}; {chunks:.0f} chunks/s, {per_cpu:.0f} requests per CPU second"
    )


async def _compare(doors: dict[str, tuple[Ask, Ask, psutil.Process]], streams: int, runs: int, rounds: int) -> None:
    """Measure each proxy and what is behind it in turn, and print a line for each."""
    found: dict[str, tuple[list[Measured], list[Measured]]] = {name: ([], []) for name in doors}
    for _ in range(runs):
        for name, (behind, through, process) in doors.items():
            found[name][0].append(await _measure(behind, streams, rounds, process))
            found[name][1].append(await _measure(through, streams, rounds, process))
    for name, (behind_it, through_it) in found.items():
        print(_row(name, streams, behind_it, through_it), flush=True)  # noqa: T201


async def _soak(name: str, ask: Ask, process: psutil.Process, requests: int) -> None:
    """Ask many times from 16 clients, and print what the memory of the process does."""
    numbers = iter(range(requests))
    step = max(1, requests // 10)

    async def client() -> None:
        for number in numbers:
            if number % step == 0:
                print(f"{name}: {number:7} requests, {process.memory_info().rss / _MILLION:.1f} MiB", flush=True)  # noqa: T201
            await ask()

    before_s, started_s = _cpu_s(process), time.perf_counter()
    await asyncio.gather(*(client() for _ in range(16)))
    took_s, cpu_s = time.perf_counter() - started_s, _cpu_s(process) - before_s
    print(  # noqa: T201
        f"{name}: {requests:7} requests, {process.memory_info().rss / _MILLION:.1f} MiB;"
        f" {requests / took_s:.0f} requests/s, {requests / cpu_s:.0f} requests per CPU second"
    )


async def _run(options: argparse.Namespace) -> None:
    chunks, pause_s = (1, 0.0) if options.soak else (CHUNKS, PAUSE_S)
    engine = [sys.executable, "-m", "tests.bench.paced", str(chunks), str(pause_s)]
    with tempfile.TemporaryDirectory() as name, _program(engine) as (_process, ports):
        grpc_port, http_port = ports.split()
        inference, engine_url = f"127.0.0.1:{grpc_port}", f"http://127.0.0.1:{http_port}"
        folder = Path(name)
        settings = {
            "inference_address": inference,
            "constraint_address": inference,
            "journal_url": f"sqlite:///{folder}/journal.sqlite3",
            "max_running": "128",
        }
        with running_service("orchestrator", **settings) as (address, _pid), _gateway(address) as (url, ours):
            async with _by_grpc(address) as behind_us:
                doors = {"pagantic": (behind_us, _by_http(url), ours)}
                if not options.litellm:
                    await _go(options, doors)
                    return
                with _litellm(options.litellm, engine_url, folder) as (litellm_url, theirs):
                    through = _by_http(litellm_url)
                    await _wait_for(through)
                    doors["LiteLLM"] = (_by_http(engine_url), through, theirs)
                    await _go(options, doors)


async def _go(options: argparse.Namespace, doors: dict[str, tuple[Ask, Ask, psutil.Process]]) -> None:
    for _behind, through, _process in doors.values():
        for _ in range(5):  # These requests are not timed.
            await through()
    if options.soak:
        for name, (_behind, through, process) in doors.items():
            await _soak(name, through, process, options.soak)
        return
    for streams in options.streams:
        await _compare(doors, streams, options.runs, options.rounds)


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.gateway", description=__doc__)
    parser.add_argument("--litellm", default="", help="the program `litellm` of an environment that has litellm[proxy]")
    parser.add_argument("--streams", type=lambda text: [int(part) for part in text.split(",")], default=[1, 16, 64])
    parser.add_argument("--runs", type=int, default=3, help="medians are over these")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="requests of each stream in one run")
    parser.add_argument("--soak", type=int, default=0, help="this many short answers instead, to see the memory")
    asyncio.run(_run(parser.parse_args()))


if __name__ == "__main__":
    main()
