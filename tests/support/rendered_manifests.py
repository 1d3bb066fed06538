"""The Kubernetes manifests as kustomize renders them."""

import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from tests.support.manifests import FOLDER, read_documents
from tests.support.needs import KUBECTL, skip_without

OVERLAYS = sorted(folder.name for folder in (FOLDER / "overlays").iterdir())
DOORS = ("gateway", "mcp")
RENDERED = ("base", *DOORS, *(f"overlays/{name}" for name in OVERLAYS))


def find_kubectl():
    """Return the program of the development packages, or the machine's."""
    kubectl = shutil.which("kubectl", path=Path(sys.executable).parent) or shutil.which("kubectl")
    return kubectl or skip_without(KUBECTL)


@cache
def render_text(name):
    done = subprocess.run(
        [find_kubectl(), "kustomize", FOLDER / name], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def render(name):
    """Return the objects of the base, a door or an overlay, by their path in deploy/kubernetes."""
    return read_documents(render_text(name))


def by_kind(objects, kind):
    return {one["metadata"]["name"]: one for one in objects if one["kind"] == kind}
