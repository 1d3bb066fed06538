"""One service as a process of its own, started by the test that needs it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from deploy.local.areas import child_environment, read_areas
from deploy.local.probing import probe_health
from pagantic_common.telemetry.names import READINESS
from tests.support.killing import wait_until
from tests.support.ports import free_ports

ROOT = Path(__file__).parents[2]


class ServiceProcess:
    """A service beside a running system, whose other services it uses unless its settings say otherwise.

    Args:
        area: Which service.
        system: Whose neighbour it is.
        log: The file that it logs to.
        until: The health that `start` waits for; None waits for nothing.
        module: What is run instead of the service's own module.
        settings: Its own settings by name, without prefix.
    """

    def __init__(self, area, system, log, *, until=READINESS, module=None, **settings):
        (self.port,) = free_ports(1)
        self.port = settings.get("port", self.port)
        self.address = f"127.0.0.1:{self.port}"
        self._until = until
        self._area = area
        self._module = module or f"services.{area}"
        self._log = log
        prefix = f"PAGANTIC_{area.upper()}_"
        neighbours = child_environment(read_areas(system.environment), system.state, system.environment)
        own = {prefix + name.upper(): str(value) for name, value in {"port": self.port, **settings}.items()}
        self._environment = {**neighbours, **own}
        self._process = None

    def start(self):
        """Start it, and return when it serves."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._module],
                cwd=ROOT,
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        wait_until(self._is_serving, f"{self._area} serves: see {self._log}")
        return self

    def send(self, number):
        """Send it a signal; after SIGKILL it is gone."""
        os.kill(self._process.pid, number)
        if number == signal.SIGKILL:
            self._process.wait()

    def close(self):
        """End it, whatever state it is in."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.close()

    def _is_serving(self):
        assert self._process.poll() is None, self._log.read_text()[-2000:]
        return self._until is None or probe_health(self.address, self._until) == "SERVING"
