"""A Kubernetes control plane of the tests' own, on 127.0.0.1, with nodes and pods that only seem to run."""

import json
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.support.build_control_plane import DEFINITIONS
from tests.support.ports import free_ports

START_S = 90
STOP_S = 20


class ControlPlane:
    """A running control plane, and kubectl that talks to it."""

    def __init__(self, programs, folder):
        self.programs = programs
        self.kubeconfig = folder / "kubeconfig"

    def kubectl(self, *arguments, stdin=None, check=True, timeout_s=100):
        """Run kubectl; warnings of the server are failures. Return what it did."""
        command = [self.programs / "kubectl", f"--kubeconfig={self.kubeconfig}", "--warnings-as-errors", *arguments]
        done = subprocess.run(
            [str(part) for part in command],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
        )
        assert not check or done.returncode == 0, f"kubectl {' '.join(map(str, arguments))}: {done.stderr}"
        return done

    def get(self, *arguments):
        """Return what `kubectl get` finds, a list for several."""
        found = json.loads(self.kubectl("get", *arguments, "-o", "json").stdout)
        return found["items"] if found["kind"].endswith("List") else found

    def apply(self, *objects, **options):
        """Apply objects as a user does, with every field checked."""
        return self.kubectl(
            "apply", "--server-side", "--validate=strict", "-f", "-", stdin=yaml.safe_dump_all(objects), **options
        )

    def wait_for(self, read, wanted, timeout_s=90):
        """Wait until `read()` is what is wanted, by `wanted` as a predicate; return it."""
        end = time.monotonic() + timeout_s
        while not wanted(value := read()):
            assert time.monotonic() < end, f"still {value}"
            time.sleep(0.5)
        return value


@contextmanager
def running_control_plane(programs):
    """Start etcd, the API server, both controllers and the actor of the nodes; all end with the context."""
    folder = Path(tempfile.mkdtemp(prefix="pagantic-control-plane-"))
    plane = ControlPlane(programs, folder)
    etcd, peers, api, manager, scheduler = free_ports(5)
    _write_secrets(folder, api)
    account_key, client = folder / "accounts.pem", f"--kubeconfig={plane.kubeconfig}"
    alone = (client, "--leader-elect=false", "--bind-address=127.0.0.1", f"--cert-dir={folder}")
    commands = {
        "etcd": (
            f"--data-dir={folder / 'etcd'}",
            f"--listen-client-urls=http://127.0.0.1:{etcd}",
            f"--advertise-client-urls=http://127.0.0.1:{etcd}",
            f"--listen-peer-urls=http://127.0.0.1:{peers}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{peers}",
            f"--initial-cluster=default=http://127.0.0.1:{peers}",
            "--unsafe-no-fsync",
        ),
        "kube-apiserver": (
            f"--etcd-servers=http://127.0.0.1:{etcd}",
            "--bind-address=127.0.0.1",
            f"--secure-port={api}",
            f"--cert-dir={folder}",
            f"--token-auth-file={folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://127.0.0.1",
            f"--service-account-key-file={account_key}",
            f"--service-account-signing-key-file={account_key}",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--endpoint-reconciler-type=none",
        ),
        "kube-controller-manager": (
            *alone,
            f"--secure-port={manager}",
            f"--service-account-private-key-file={account_key}",
            "--horizontal-pod-autoscaler-sync-period=2s",
            "--horizontal-pod-autoscaler-initial-readiness-delay=1s",
        ),
        "kube-scheduler": (*alone, f"--secure-port={scheduler}"),
        "kwok": (client, "--manage-all-nodes", "--node-lease-duration-seconds=40"),
    }
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        for name, arguments in commands.items():
            stack.enter_context(_running(programs / name, arguments, folder))
            if name == "kube-apiserver":
                _wait_until_ready(plane, folder)
        plane.kubectl("apply", "--server-side", "-f", programs / DEFINITIONS)
        plane.kubectl("wait", "crd", "--all", "--for=condition=Established", "--timeout=60s")
        yield plane


def _write_secrets(folder, port):
    token = secrets.token_hex(16)
    (folder / "tokens.csv").write_text(f'{token},admin,admin,"system:masters"\n')
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    encoded = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "accounts.pem").write_bytes(encoded)
    # The server makes its own certificate, which nobody else signed.
    server = {"server": f"https://127.0.0.1:{port}", "insecure-skip-tls-verify": True}
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": server}],
        "users": [{"name": "test", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "current-context": "test",
    }
    (folder / "kubeconfig").write_text(yaml.safe_dump(kubeconfig))


@contextmanager
def _running(program, arguments, folder):
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    with (folder / f"{program.name}.log").open("wb") as log:
        process = subprocess.Popen(
            [program, *arguments], cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_ready(plane, folder):
    end = time.monotonic() + START_S
    while plane.kubectl("get", "--raw=/readyz", check=False).returncode:
        log = (folder / "kube-apiserver.log").read_text()
        assert time.monotonic() < end, f"the API server is not ready:\n{log[-3000:]}"
        time.sleep(0.5)
