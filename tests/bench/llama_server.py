"""llama.cpp's own server, started with the settings that serve it best on this machine."""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryFile

import httpx

from tests.bench.load import BenchError, measure, warm_up_queries
from tests.bench.peer import find_peer
from tests.bench.scenarios import SCENARIOS
from tests.support.ports import free_ports

START_S = 300.0


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What the sweep chooses among.

    Attributes:
        flash_attention: "on" or "off".
        ubatch_tokens: Most tokens of one step of a prompt.
        spin_count: Rounds in which a thread of OpenMP waits for the next work awake; None is OpenMP's own choice.
    """

    flash_attention: str = "off"
    ubatch_tokens: int = 512
    spin_count: int | None = None

    @property
    def arguments(self) -> list[str]:
        """Arguments of the program."""
        return ["--flash-attn", self.flash_attention, "--ubatch-size", str(self.ubatch_tokens)]

    @property
    def environment(self) -> dict[str, str]:
        """Variables of its environment."""
        return {} if self.spin_count is None else {"GOMP_SPINCOUNT": str(self.spin_count)}


@contextmanager
def running_llama_server(
    program: Path, model: Path, arguments: Sequence[str], settings: ServerSettings | None = None
) -> Iterator[str]:
    """Run the server with a model; yields its URL when it is ready."""
    (port,) = free_ports(1)
    command = [str(program), "--model", str(model), "--host", "127.0.0.1", "--port", str(port), *arguments]
    environment = dict(os.environ)
    if settings is not None:
        command += settings.arguments
        environment |= settings.environment
    url = f"http://127.0.0.1:{port}"
    with (
        TemporaryFile() as log,
        subprocess.Popen(command, stdout=log, stderr=log, env=environment) as process,
    ):
        try:
            end_s = time.monotonic() + START_S
            while not _is_ready(url):
                if process.poll() is not None or time.monotonic() > end_s:
                    log.seek(0)
                    raise BenchError(f"llama-server does not start: {log.read()[-2000:].decode(errors='replace')}")
                time.sleep(0.5)
            yield url
        finally:
            process.terminate()


def best_settings(
    program: Path,
    model: Path,
    arguments: Sequence[str],
    *,
    levels: Sequence[int],
    requests: int,
    say: Callable[[str], None],
) -> ServerSettings:
    """Return the settings with the highest rate of chat, one choice after the other; `say` takes a line for each.

    The rate is the geometric mean of the output tokens per second over `levels` of clients.
    """

    def rate(settings: ServerSettings) -> float:
        with running_llama_server(program, model, arguments, settings) as url:
            rates = asyncio.run(_rates(url, levels, requests))
        found = statistics.geometric_mean(rates)
        shown = ", ".join(f"{one:.1f} at {level}" for one, level in zip(rates, levels, strict=True))
        say(f"llama-server {' '.join(settings.arguments)}, spin count {settings.spin_count}: {shown} tokens/s")
        return found

    best = ServerSettings()
    best_rate = rate(best)
    for other in ({"flash_attention": "on"}, {"ubatch_tokens": 128}, {"spin_count": 300}):
        tried = replace(best, **other)  # type: ignore[arg-type]
        tried_rate = rate(tried)
        if tried_rate > best_rate:
            best, best_rate = tried, tried_rate
    return best


async def _rates(url: str, levels: Sequence[int], requests: int) -> list[float]:
    chat = next(scenario for scenario in SCENARIOS if scenario.name == "chat")
    peer = await find_peer(url, ())
    rates = []
    for clients in levels:
        await measure(peer, (), warm_up_queries(clients), clients)
        run = chat.make(Random(clients), requests)  # noqa: S311
        measured = await measure(peer, run.warm_up, run.queries, clients)
        rates.append(sum(answer.output_tokens or 0 for answer in measured.answers) / measured.wall_s)
    return rates


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=2).is_success
    except httpx.TransportError:
        return False
