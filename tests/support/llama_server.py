"""llama.cpp's own server, a process of its own: another engine for tests, and the peer of benches."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import httpx

from services.inference.adapters.default_model import find_default_model
from tests.support.needs import LLAMA_SERVER, skip_without
from tests.support.ports import free_ports

VARIABLE = "PAGANTIC_LLAMA_SERVER"
WINDOW = 1024
SLOTS = 4
START_S = 300.0
_POLL_S = 0.1


class LlamaServerError(Exception):
    """The server does not start."""


class LlamaServer:
    """The server at a port that stays its own, whatever happens to the process.

    Args:
        program: The file of the program.
        model: The model that it serves.
        arguments: Further arguments.
        log: The file that what it prints is appended to.
        environment: Variables beside those of this process.
    """

    def __init__(
        self,
        program: Path,
        model: Path,
        arguments: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        (port,) = free_ports(1)
        self.origin = f"http://127.0.0.1:{port}"
        self._command = [str(program), "--model", str(model), "--host", "127.0.0.1", "--port", str(port), *arguments]
        self._environment = {**os.environ, **(environment or {})}
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The address of its OpenAI API."""
        return f"{self.origin}/v1"

    def start(self) -> Self:
        """Start it, and return when it has loaded its model; raises LlamaServerError if it ends before that."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=subprocess.STDOUT, env=self._environment)
        end_s = time.monotonic() + START_S
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > end_s:
                self.kill()
                raise LlamaServerError(f"llama-server does not start: {self._log.read_text(errors='replace')[-2000:]}")
            time.sleep(_POLL_S)
        return self

    def kill(self) -> None:
        """End it as a crash would; nothing if it does not run."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.origin}/health", timeout=2).is_success
        except httpx.TransportError:
            return False


def bundled_llama_server(folder: Path) -> LlamaServer:
    """Return the server that tests use, with the bundled model; skips the test where there is no program."""
    program = Path(os.environ.get(VARIABLE, ""))
    if not program.is_file():
        skip_without(LLAMA_SERVER)
    arguments = ["--ctx-size", str(SLOTS * WINDOW), "--parallel", str(SLOTS), "--threads", "2", "--jinja"]
    return LlamaServer(program, find_default_model(), arguments, log=folder / "log")
