"""llama.cpp's own server with the bundled model, a process of its own: another engine for tests."""

import os
import signal
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

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
        options = ["--ctx-size", str(slots * WINDOW), "--parallel", str(slots), "--threads", "2", "--jinja"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [self._program, "--model", find_default_model(), "--host", "127.0.0.1", "--port", str(self._port)]
                + options,
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
            with urllib.request.urlopen(self.url.removesuffix("/v1") + "/health", timeout=1) as answer:
                return answer.status == 200
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            return False
