"""Replicas of the inference service as processes, and the programs that stand before them."""

import os
import shutil
from contextlib import ExitStack

from services.inference.adapters.default_model import find_default_model
from tests.bench.routing import cluster
from tests.support.needs import skip_without
from tests.support.ports import free_ports

SMALL = {"CONTEXT_TOKENS": "1024", "PARKED_MIB": "100"}


def program_of(need, name):
    """Return the program that a variable or the PATH has; skip the test without it."""
    program = os.environ.get(f"PAGANTIC_TEST_{name.upper()}") or shutil.which(name)
    return program or skip_without(need)


class Replicas:
    """Replicas with the bundled model; each can be killed."""

    def __init__(self, folder, count, **settings):
        self.addresses = [f"127.0.0.1:{port}" for port in free_ports(count)]
        self.model = find_default_model().stem
        self._settings = {**SMALL, **settings}
        self._log = folder / "replicas.log"
        self._processes = {}
        self._stack = ExitStack()

    def __enter__(self):
        with ExitStack() as stack:
            for address in self.addresses:
                command, environment = cluster.replica_command(address, self._settings, is_paced=False)
                self._processes[address] = stack.enter_context(cluster.running(command, environment, self._log))
            for address in self.addresses:
                cluster.wait_until_serving(address, self._log)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc):
        return self._stack.__exit__(*exc)

    def kill(self, address):
        self._processes[address].kill()
        self._processes[address].wait()
