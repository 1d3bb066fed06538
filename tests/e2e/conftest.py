"""Real processes with the real model, started once by the supervisor that users have."""

import json
import os
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from tests.support.collector import collecting
from tests.support.cross_encoder import write_cross_encoder
from tests.support.killing import Processes
from tests.support.live_requests import ingest
from tests.support.ports import free_ports

ROOT = Path(__file__).parents[2]
AREAS = ("orchestrator", "inference", "constraint", "context", "rerank", "tools")


class System:
    """The running services: where they listen, and how commands of a checkout are run against them."""

    def __init__(self, state, root=ROOT):
        self.root = root
        self.ports = dict(zip(AREAS, free_ports(len(AREAS)), strict=True))
        self.state = state
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith("PAGANTIC_")}
        self.environment |= {f"PAGANTIC_{area.upper()}_PORT": str(port) for area, port in self.ports.items()}
        self.environment |= {
            "PAGANTIC_SETTINGS_FILE": "none",
            "PAGANTIC_STATE": str(state),
            "PAGANTIC_ORCHESTRATOR_JOURNAL_URL": f"sqlite:///{state / 'journal.sqlite3'}",
            "PAGANTIC_CONTEXT_DATA_FOLDER": str(state / "context"),
            # Several systems share the cores: no measurement would end, and threads of an engine would wait for each
            # other while another engine has their core.
            "PAGANTIC_INFERENCE_TUNING": "false",
            "PAGANTIC_INFERENCE_THREADS": "1",
            "PAGANTIC_CONSTRAINT_WORKERS": "1",
            "PAGANTIC_CONTEXT_WORKERS": "1",
            "PAGANTIC_ADDRESS": self.address("orchestrator"),
            "PAGANTIC_CONTEXT_ADDRESS": self.address("context"),
            "PAGANTIC_TOOLS_ADDRESS": self.address("tools"),
            "PAGANTIC_INFERENCE_ADDRESS": self.address("inference"),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "COLUMNS": "200",
        }

    def ask_for_keys(self):
        """Have the next start ask callers for API keys; the services then ask each other for tenant tokens."""
        self.admin = self.run("pagantic", "keys", "new").stdout.strip()
        (self.state / "admin-key").write_text(self.admin)
        self.environment |= {
            "PAGANTIC_ORCHESTRATOR_AUTH": "keys",
            "PAGANTIC_ORCHESTRATOR_ADMIN_KEY_FILE": str(self.state / "admin-key"),
        }

    def address(self, area):
        return f"127.0.0.1:{self.ports[area]}"

    def run(self, *command, stdin=None, timeout_s=180, check=True):
        """Run a command as a user would; returns the completed process."""
        done = subprocess.run(
            [str(part) for part in command],
            cwd=self.root,
            env=self.environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if check:
            assert done.returncode == 0, f"{command} gave {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done


@pytest.fixture(scope="session")
def system(tmp_path_factory):
    running = System(tmp_path_factory.mktemp("state"))
    cross_encoder = tmp_path_factory.mktemp("models") / "cross-encoder.gguf"
    write_cross_encoder(cross_encoder)
    running.environment["PAGANTIC_INFERENCE_MODELS"] = json.dumps({"pairs": str(cross_encoder)})
    running.run(sys.executable, "-m", "deploy.local", "up")
    yield running
    running.run(sys.executable, "-m", "deploy.local", "down")


@pytest.fixture
def channel(system):
    with grpc.insecure_channel(system.address("orchestrator")) as opened:
        yield opened


@pytest.fixture(scope="session")
def keyed(tmp_path_factory):
    """A system of its own, whose callers need API keys.

    It reports as much as it can: debug logs, and the traces and metrics that are `received`.
    """
    running = System(tmp_path_factory.mktemp("keyed"))
    running.ask_for_keys()
    running.metrics_ports = dict(zip(AREAS, free_ports(len(AREAS)), strict=True))
    with collecting() as (address, running.received):
        running.environment |= {
            "PAGANTIC_LOG_LEVEL": "DEBUG",
            "PAGANTIC_OTLP_ENDPOINT": address,
            "OTEL_BSP_SCHEDULE_DELAY": "200",
            "OTEL_METRIC_EXPORT_INTERVAL": "500",
            **{f"PAGANTIC_{area.upper()}_METRICS_PORT": str(port) for area, port in running.metrics_ports.items()},
        }
        running.run(sys.executable, "-m", "deploy.local", "up")
        yield running
        running.run(sys.executable, "-m", "deploy.local", "down")


@pytest.fixture(scope="session")
def mortal(tmp_path_factory):
    """A system of its own, for tests that kill what it is made of."""
    running = System(tmp_path_factory.mktemp("mortal"))
    running.run(sys.executable, "-m", "deploy.local", "up")
    ingest(running.address("context"))
    yield running
    running.run(sys.executable, "-m", "deploy.local", "down")


@pytest.fixture
def processes(mortal):
    """The processes of the mortal system, which all run: a test that failed may have left one dead."""
    running = Processes(mortal)
    running.wait_until_whole()
    return running
