"""A Prometheus of the tests' own, with the alerts of the deployment in a hurry."""

import json
import re
import shutil
import signal
import subprocess
import urllib.request
from contextlib import contextmanager

from tests.support.killing import wait_until
from tests.support.ports import free_ports

# Windows and waits of the alerts, so short that a test can wait for them.
SHORTER = {"2m": "6s", "5m": "10s", "15m": "60s", "30m": "20s", "1h": "10m"}
# A test would wait too long for an execution, a first token or a step that is slow by the deployment's thresholds.
FASTER = {"> 30\n": "> 0.2\n", "> 5\n": "> 0.1\n"}


def hurried(rules):
    """Return the text of rules with shorter windows and waits, and stricter thresholds of time."""
    rules = re.sub(r"\[(\d+[mh])\]", lambda found: f"[{SHORTER[found[1]]}]", rules)
    rules = re.sub(r"for: \d+[mh]", "for: 1s", rules)
    for threshold, faster in FASTER.items():
        assert threshold in rules
        rules = rules.replace(threshold, faster)
    return rules


class Prometheus:
    """What a running Prometheus knows."""

    def __init__(self, url, folder):
        self._url = url
        self._targets = folder / "targets.json"
        self._addresses = []

    def watch(self, address):
        """Read the metrics of one more target from now on, and return once it was read."""
        self._addresses.append(address)
        fresh = self._targets.with_suffix(".new")
        fresh.write_text(json.dumps([{"targets": self._addresses}]))
        fresh.replace(self._targets.with_suffix(".json"))
        wait_until(lambda: self.query(f'up{{instance="{address}"}} == 1'), f"{address} is read")

    def query(self, expression):
        """Return the series of an instant query."""
        return self._get(f"query?query={urllib.request.quote(expression)}")["result"]

    def metric_names(self):
        """Return the names of all metrics that were read."""
        return set(self._get("label/__name__/values"))

    def firing(self):
        """Return the names of the alerts that fire."""
        return {alert["labels"]["alertname"] for alert in self._get("alerts")["alerts"] if alert["state"] == "firing"}

    def _get(self, path):
        with urllib.request.urlopen(f"{self._url}/api/v1/{path}", timeout=10) as response:  # noqa: S310 - its own URL
            return json.load(response)["data"]


def find_prometheus():
    """Return the program, or None."""
    return shutil.which("prometheus")


@contextmanager
def running_prometheus(program, rules, folder):
    """Run it with the text of rules; it reads each target every second."""
    (port,) = free_ports(1)
    targets = folder / "targets.json"
    targets.write_text("[]")
    (folder / "rules.yaml").write_text(rules)
    job = {"job_name": "pagantic", "file_sd_configs": [{"files": [str(targets)], "refresh_interval": "1s"}]}
    intervals = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    settings = {"global": intervals, "rule_files": [str(folder / "rules.yaml")], "scrape_configs": [job]}
    (folder / "prometheus.yml").write_text(json.dumps(settings))
    command = [
        program,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        prometheus = Prometheus(f"http://127.0.0.1:{port}", folder)
        wait_until(lambda: _is_up(prometheus), f"Prometheus answers: see {folder / 'log'}")
        yield prometheus
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def _is_up(prometheus):
    try:
        return prometheus.firing() == set()
    except OSError:
        return False
