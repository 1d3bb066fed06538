"""llama.cpp's own server, started with the settings that serve it best on this machine."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile

import httpx

from tests.bench.load import BenchError
from tests.bench.peer import find_peer
from tests.bench.sweep import best_by_turns, chat_rates, overall
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
        title = f"llama-server {' '.join(settings.arguments)}, spin count {settings.spin_count}"
        return overall(title, levels, rates, say)

    variants = (
        partial(replace, flash_attention="on"),
        partial(replace, ubatch_tokens=128),
        partial(replace, spin_count=1000),
    )
    return best_by_turns(ServerSettings(), variants, rate)


async def _rates(url: str, levels: Sequence[int], requests: int) -> list[float]:
    return await chat_rates(await find_peer(url, ()), levels, requests)


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=2).is_success
    except httpx.TransportError:
        return False
