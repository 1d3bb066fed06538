"""llama.cpp's own server with the bundled model, a process of its own: another engine for tests."""

import os
import signal
import subprocess
from pathlib import Path

import httpx

from services.inference.adapters.default_model import find_default_model
from tests.support.killing import wait_until
from tests.support.needs import LLAMA_SERVER, skip_without
from tests.support.ports import free_ports

VARIABLE = "PAGANTIC_LLAMA_SERVER"
WINDOW = 1024


class LlamaServer:
    """The server at a port that stays its own; skips the test where there is no program."""

    def __init__(self, log):
        self._program = os.environ.get(VARIABLE, "")
        if not Path(self._program).is_file():
            skip_without(LLAMA_SERVER)
        (self._port,) = free_ports(1)
        self._log = log
        self._process = None
        self.url = f"http://127.0.0.1:{self._port}/v1"

    def start(self):
        """Start it, and return when it has loaded its model."""
        slots = 4
        options = [
            "--host",
            "127.0.0.1",
            "--port",
            str(self._port),
            "--ctx-size",
            str(slots * WINDOW),
            "--parallel",
            str(slots),
            "--threads",
            "2",
            "--jinja",
        ]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [self._program, "--model", find_default_model(), *options],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        wait_until(self._is_ready, f"llama-server serves: see {self._log}")
        return self

    def kill(self):
        """End it as a crash would."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        if self._process.poll() is None:
            self.kill()

    def _is_ready(self):
        assert self._process.poll() is None, self._log.read_text()[-2000:]
        try:
            return httpx.get(self.url.removesuffix("/v1") + "/health", timeout=1).is_success
        except httpx.TransportError:
            return False
