"""`python -m tests.support.build_control_plane`: builds the programs of a Kubernetes control plane from Go modules.

It prints the folder of the programs, which stay in the cache folder for the next call. Beside them are the definitions
of the custom resources that our manifests use, as their own projects publish them. Go verifies all checksums.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

KUBERNETES = "k8s.io/kubernetes"
STAGED = re.compile(r"^\t(k8s\.io/[\w.-]+) v0\.0\.0$", re.MULTILINE)


@dataclass(frozen=True)
class Module:
    """A Go module, and what is built of it: packages by the names of their programs."""

    path: str
    version: str
    programs: dict[str, str]

    @property
    def staged_version(self):
        """Return the version of the modules that Kubernetes keeps in its own repository, and publishes as v0."""
        return "v0" + self.version.removeprefix("v1")

    @property
    def stamp(self):
        """Return the linker's options that tell Kubernetes its version, which charts may ask for."""
        return f"-X k8s.io/component-base/version.gitVersion={self.version}" if self.path == KUBERNETES else ""


MODULES = (
    Module("go.etcd.io/etcd/server/v3", "v3.6.8", {"etcd": "go.etcd.io/etcd/server/v3"}),
    Module("helm.sh/helm/v4", "v4.3.1", {"helm": "helm.sh/helm/v4/cmd/helm"}),
    Module("sigs.k8s.io/kwok", "v0.7.0", {"kwok": "sigs.k8s.io/kwok/cmd/kwok"}),
    Module(
        KUBERNETES,
        "v1.36.3",
        {
            name: f"{KUBERNETES}/cmd/{name}"
            for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
        },
    ),
)

DEFINITIONS = "definitions.yaml"
# The kinds that are taken of each module's files.
CUSTOM_KINDS = (
    ("github.com/cert-manager/cert-manager", "v1.21.2", "deploy/crds/*.yaml", ("Issuer", "Certificate")),
    ("github.com/kedacore/keda/v2", "v2.21.0", "config/crd/bases/*.yaml", ("ScaledObject",)),
    ("github.com/prometheus-operator/prometheus-operator", "v0.85.0", "example/*-crd/*.yaml", ("PodMonitor",)),
    ("istio.io/api", "v1.31.4", "kubernetes/*.yaml", ("PeerAuthentication",)),
)


def find_or_build(cache):
    """Return the folder of the programs; those that the cache does not have are built."""
    key = hashlib.sha256(repr(([(one, one.stamp) for one in MODULES], CUSTOM_KINDS)).encode()).hexdigest()[:16]
    folder = cache / "control-plane" / key
    folder.mkdir(parents=True, exist_ok=True)
    for module in MODULES:
        if not all((folder / name).is_file() for name in module.programs):
            _build(module, folder)
    if not (folder / DEFINITIONS).is_file():
        found = [definition for one in CUSTOM_KINDS for definition in _definitions(*one)]
        (folder / DEFINITIONS).write_text("\n---\n".join(found), encoding="utf-8")
    return folder


def _definitions(path, version, pattern, kinds):
    is_wanted = re.compile(rf"^    kind: ({'|'.join(kinds)})$", re.MULTILINE)  # of the resources, in `names`
    found = [
        document
        for file in sorted(Path(_download(path, version, Path.cwd())["Dir"]).glob(pattern))
        for document in file.read_text(encoding="utf-8").split("\n---\n")
        if is_wanted.search(document)
    ]
    assert len(found) == len(kinds), f"{path} {version} does not define {kinds}"
    return found


def _download(path, version, folder):
    command = ("go", "mod", "download", "-json", f"{path}@{version}")
    done = subprocess.run(command, check=True, cwd=folder, env=_environment(), timeout=600, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


def _build(module, folder):
    log = folder / "build.log"
    sys.stderr.write(f"control plane: building {module.path} {module.version} (minutes, once; log: {log})\n")
    with tempfile.TemporaryDirectory() as scratch, log.open("ab") as sink:
        requirements = Path(_download(module.path, module.version, scratch)["GoMod"]).read_text(encoding="utf-8")
        (Path(scratch) / "go.mod").write_text(_go_mod(module, requirements), encoding="utf-8")
        for name, package in module.programs.items():
            command = ("go", "build", f"-ldflags=-s -w {module.stamp}", "-o", f"{scratch}/{name}", package)
            subprocess.run(
                command,
                check=True,
                cwd=scratch,
                env=_environment(),
                timeout=3600,
                stdout=sink,
                stderr=subprocess.STDOUT,
            )
            shutil.copy2(f"{scratch}/{name}", folder / f"{name}.partial")
            (folder / f"{name}.partial").rename(folder / name)


def _go_mod(module, requirements):
    """Return a module that requires this one alone, with what Kubernetes replaces by folders as it is published."""
    replaced = [f"replace {name} => {name} {module.staged_version}" for name in STAGED.findall(requirements)]
    version = re.search(r"^go \S+$", requirements, re.MULTILINE)[0]
    return "\n".join(["module controlplane", version, f"require {module.path} {module.version}", *replaced, ""])


def _environment():
    return os.environ | {"GOFLAGS": "-mod=mod -buildvcs=false -trimpath", "CGO_ENABLED": "0", "GOWORK": "off"}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, required=True)
    sys.stdout.write(f"{find_or_build(parser.parse_args().cache)}\n")


if __name__ == "__main__":
    main()
