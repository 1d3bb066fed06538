"""llama.cpp's own server, started with the settings that serve it best on this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.bench.load import BenchError
from tests.bench.peer import find_peer
from tests.bench.sweep import best_by_turns, chat_rates, overall
from tests.support.llama_server import LlamaServer, LlamaServerError


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
    environment: dict[str, str] = {}
    if settings is not None:
        arguments = [*arguments, *settings.arguments]
        environment = settings.environment
    with TemporaryDirectory() as folder:
        server = LlamaServer(program, model, arguments, log=Path(folder) / "log", environment=environment)
        try:
            with server:
                yield server.origin
        except LlamaServerError as error:
            raise BenchError(str(error)) from None


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
