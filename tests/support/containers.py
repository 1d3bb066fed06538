"""Containers of deploy/compose.yaml, run by podman-compose beside whatever else runs on this machine."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import yaml

from tests.support.killing import wait_until
from tests.support.ports import free_ports

COMPOSE = Path(__file__).parents[2] / "deploy" / "compose.yaml"
COMMAND_S = 300
# A machine whose root has lower limits than the default ones of podman refuses to raise them.
LIMITS = "--ulimit nofile=1024:1024 --ulimit nproc=1000:1000"


def podman(*arguments, check=True, environment=None):
    """Run podman and return what it did."""
    done = subprocess.run(
        [shutil.which("podman") or "podman", *map(str, arguments)],
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=COMMAND_S,
    )
    assert not check or done.returncode == 0, f"podman {' '.join(map(str, arguments))}: {done.stderr}"
    return done


class Containers:
    """All services and the gateway as containers; `with` runs them until all are healthy."""

    def __init__(self, image, folder):
        self.port, self.http_port = free_ports(2)
        self._folder = folder
        self._project = f"pagantic-test-{os.getpid()}"
        self._file = folder / "compose.yaml"
        compose = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))
        compose["name"] = self._project
        for service in compose["services"].values():
            service["healthcheck"].pop("start_interval", None)  # podman knows it from version 5
        self._file.write_text(yaml.safe_dump(compose))
        self.names = sorted(compose["services"])
        self._environment = {
            "PAGANTIC_IMAGE": image,
            "PAGANTIC_KEYS": str(folder),
            "PAGANTIC_PORT": str(self.port),
            "PAGANTIC_HTTP_PORT": str(self.http_port),
            "CONTAINERS_CONF": str(folder / "containers.conf"),
        }

    def __enter__(self):
        self._write_keys()
        (self._folder / "containers.conf").write_text(
            '[network]\nnetwork_backend = "netavark"\n[engine]\ncgroup_manager = "cgroupfs"\nruntime = "runc"\n'
        )
        try:
            begun_s = time.monotonic()
            self._compose("up", "--detach")
            for name in self.names:
                wait_until(lambda name=name: self.is_healthy(name), f"{name} is healthy", within_s=120, poll_s=0.5)
            sys.stderr.write(f"all containers are healthy after {time.monotonic() - begun_s:.0f} s\n")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc):
        self._compose("down", "--volumes", "--timeout", "20", check=False)

    @property
    def key(self):
        """The operator's API key."""
        return (self._folder / "admin-key").read_text().strip()

    def is_healthy(self, name):
        """Run a container's own check."""
        return self.podman("healthcheck", "run", self.container(name), check=False).returncode == 0

    def container(self, name):
        return f"{self._project}_{name}_1"

    def podman(self, *arguments, **options):
        return podman(*arguments, environment=self._environment, **options)

    def _write_keys(self):
        """Make the keys as the page about containers says."""
        script = (
            f'umask 077 && "{Path(sys.executable).parent}/pagantic" keys new > admin-key && '
            "for key in signing context; do openssl genpkey -algorithm ed25519 -out $key.pem; done && "
            "openssl pkey -in signing.pem -pubout -out verifying.pem && "
            "(cat verifying.pem && openssl pkey -in context.pem -pubout) > inference.pem && "
            "chmod 644 verifying.pem inference.pem"
        )
        subprocess.run(
            [shutil.which("bash") or "bash", "-c", script],
            cwd=self._folder,
            check=True,
            timeout=COMMAND_S,
            capture_output=True,
        )
        for name in ("admin-key", "signing.pem", "context.pem"):
            shutil.chown(self._folder / name, 10001)

    def _compose(self, *arguments, check=True):
        done = subprocess.run(
            [
                str(Path(sys.executable).parent / "podman-compose"),
                f"--podman-run-args={LIMITS}",
                "--in-pod=false",
                "-f",
                str(self._file),
                *arguments,
            ],
            env={**os.environ, **self._environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=COMMAND_S,
        )
        assert not check or done.returncode == 0, f"podman-compose {arguments}: {done.stderr}"
