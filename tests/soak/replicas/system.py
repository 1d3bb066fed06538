"""The services of a system, each process on a host of its own, and the names by which they find each other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from pagantic_common.rpc.probe import ask_health
from tests.bench.routing.cluster import replica_command
from tests.soak.replicas import counted_tool
from tests.support.killing import wait_until

PORTS = {
    "orchestrator": 50051,
    "inference": 50052,
    "constraint": 50053,
    "context": 50054,
    "rerank": 50055,
    "tools": 50056,
}
# In the order of their start; an orchestrator comes without waiting for the others.
COUNTS = {"orchestrator": 2, "inference": 3, "constraint": 1, "context": 1, "rerank": 1, "tools": 1}
SMALL = {"CONTEXT_TOKENS": "2048", "PARKED_MIB": "100"}
READY_S = 120.0
# What the manifests say: a pod leaves the DNS, sleeps, is told to stop, has its drain, and is killed.
PRE_STOP_S = 5.0
LINGERS_S = 8.0  # longest time that the DNS has the address of one that leaves
DRAIN_S = 60.0
GRACE_S = 75.0
TOOLS = Path(counted_tool.__file__)


def say(text):
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def name_of(area):
    return f"{area}.test"


def address_of(area):
    return f"dns:///{name_of(area)}:{PORTS[area]}"


class Instance:
    """One process of a service."""

    def __init__(self, area, host, command, environment, log):
        self.area = area
        self.host = host
        self.address = f"{host.address}:{PORTS[area]}"
        self._command = [*host.enters, *command]
        self._environment = environment
        self._log = log
        self._process = None

    def start(self):
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def wait_until_ready(self):
        def is_ready():
            status = self._process.poll()
            assert status is None, f"{self.host.name} ended with status {status}: see {self._log}"
            return ask_health(self.address) == "SERVING"

        wait_until(is_ready, f"{self.host.name} serves: see {self._log}", READY_S, poll_s=0.2)

    def send(self, number):
        """Send it a signal; after SIGKILL it is gone."""
        self._process.send_signal(number)
        if number == signal.SIGKILL:
            self._process.wait()

    def end_within(self, seconds):
        """Wait for its end, and return whether it came in time; it is killed otherwise."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGKILL)
            return False
        return True


class System:
    """All instances by service, and what the DNS has of them.

    Args:
        network: Where the hosts are.
        database: The URL of the database.
        patience_s: CONNECT_PATIENCE_S of those that call others.
    """

    def __init__(self, network, database, patience_s):
        self.folder = network.folder
        self.instances = {area: [] for area in COUNTS}
        self.problems = []
        self.runs_file = self.folder / "tool_runs"
        self._network = network
        self._database = database
        self._patience_s = patience_s
        self._listed = {name_of(area): [] for area in COUNTS}
        self._alone = threading.Lock()

    def start(self):
        """Start everything, and return when all of it is ready."""
        started = [self.launch(area) for area, count in COUNTS.items() for _ in range(count)]
        for instance in started:
            self.enlist(instance)
        for instance in started:
            instance.wait_until_ready()

    def launch(self, area):
        """Return a new instance on a new host, which starts and is not in the DNS."""
        host = self._network.add_host(area)
        command, own = self._command(area, host)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PAGANTIC_")}
        environment |= {"PAGANTIC_AUTH": "none", "PAGANTIC_HOST": "0.0.0.0"} | own  # noqa: S104 - its own network
        environment |= {"PAGANTIC_STATE": str(self.folder / host.name), counted_tool.RUNS_FILE: str(self.runs_file)}
        instance = Instance(area, host, command, environment, self.folder / f"{host.name}.log")
        instance.start()
        self.instances[area].append(instance)
        return instance

    def enlist(self, instance):
        self._publish(instance, is_listed=True)

    def retire(self, instance, random):
        """Let an instance go as Kubernetes does; the DNS may have its address a little longer than it serves."""
        self.instances[instance.area].remove(instance)
        lingers_s = random.uniform(0.0, LINGERS_S)
        began_s = time.monotonic()
        for at_s, is_leaving_dns in sorted([(lingers_s, True), (PRE_STOP_S, False)]):
            time.sleep(max(0.0, began_s + at_s - time.monotonic()))
            if is_leaving_dns:
                self._publish(instance, is_listed=False)
            else:
                instance.send(signal.SIGTERM)
        if not instance.end_within(GRACE_S):
            self.problems.append(f"{instance.host.name} did not end within {GRACE_S:g} s of SIGTERM")
        instance.host.remove()

    def replace(self, instance, random):
        """Let a new instance take the place of one, which goes once the new one is known."""
        new = self.launch(instance.area)
        new.wait_until_ready()
        self.enlist(new)
        time.sleep(PRE_STOP_S)
        self.retire(instance, random)

    def _publish(self, instance, *, is_listed):
        with self._alone:
            addresses = self._listed[name_of(instance.area)]
            if is_listed:
                addresses.append(instance.host.address)
            else:
                addresses.remove(instance.host.address)
            self._network.publish(self._listed)

    def _command(self, area, host):
        if area == "inference":
            settings = {**SMALL, "DRAIN_S": f"{DRAIN_S:g}"}
            return replica_command(f"0.0.0.0:{PORTS[area]}", settings, is_paced=False)
        settings = {"PORT": str(PORTS[area]), **getattr(self, f"_{area}")(host)}
        prefix = f"PAGANTIC_{area.upper()}_"
        return [sys.executable, "-m", f"services.{area}"], {prefix + name: value for name, value in settings.items()}

    def _orchestrator(self, host):
        addresses = {f"{area.upper()}_ADDRESS": address_of(area) for area in COUNTS if area != "orchestrator"}
        # The hosts share the machine's name, of which the default is made.
        own = {"INSTANCE_ID": host.name, "JOURNAL_URL": self._database, "DRAIN_S": f"{DRAIN_S:g}"}
        return {**addresses, **own, "CONNECT_PATIENCE_S": f"{self._patience_s:g}"}

    def _constraint(self, _host):
        return {"INFERENCE_ADDRESS": address_of("inference"), "CONNECT_PATIENCE_S": f"{self._patience_s:g}"}

    _rerank = _constraint

    def _context(self, host):
        return {**self._constraint(host), "STORE_URL": self._database, "EMBEDDING_MODEL": ""}

    def _tools(self, _host):
        return {"MODULES": str(TOOLS), "INSTALLED": "false"}
