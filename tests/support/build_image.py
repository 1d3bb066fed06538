"""`python -m tests.support.build_image`: builds the image without a container daemon and without a registry of images.

Needs root, mmdebstrap and buildah. The base images are made of Debian's packages, and stay for the next call, as does
every step of the build. Prints the name of the image.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.containers import podman

ROOT = Path(__file__).parents[2]
RELEASE = "bookworm"
AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
BASES = {
    "pagantic-build": "ca-certificates,python3,python3-venv,python3-dev",
    "pagantic-run": "ca-certificates,python3",
}
# What images of Debian leave out, too.
SLIM = (
    "--dpkgopt=path-exclude=/usr/share/doc/*",
    "--dpkgopt=path-exclude=/usr/share/man/*",
    "--dpkgopt=path-exclude=/usr/share/locale/*",
    '--customize-hook=rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/*.bin',
)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", default="localhost/pagantic:test")
    parser.add_argument("--build-arg", action="append", default=[], help="further arguments of the Dockerfile")
    options = parser.parse_args()
    for name, packages in BASES.items():
        _make_base(f"localhost/{name}:{RELEASE}", packages)
    _build(options.name, options.build_arg)
    sys.stdout.write(f"{options.name}\n")


def _make_base(name, packages):
    if podman("image", "exists", name, check=False).returncode == 0:
        return
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder, "base.tar")
        _run("mmdebstrap", "--variant=apt", *SLIM, f"--include={packages}", RELEASE, archive)
        _run("podman", "import", archive, name)


def _build(name, build_args):
    command = ["buildah", "bud", "--layers", "--format", "docker", "--isolation", "chroot", "--network", "host"]
    if AUTHORITIES.exists():  # those that this machine trusts, such as a proxy's
        command += ["--volume", f"{AUTHORITIES}:{AUTHORITIES}:ro"]
    bases = zip(("BUILD_IMAGE", "RUN_IMAGE"), BASES, strict=True)
    arguments = [f"{argument}=localhost/{base}:{RELEASE}" for argument, base in bases]
    for argument in (*arguments, *build_args):
        command += ["--build-arg", argument]
    _run(*command, "-f", ROOT / "deploy" / "Dockerfile", "-t", name, ROOT)


def _run(*command):
    """Run a command, which writes its progress to the standard error."""
    done = subprocess.run(command, stdout=sys.stderr, env=os.environ, check=False)
    if done.returncode:
        raise SystemExit(f"{command[0]} gave {done.returncode}")


if __name__ == "__main__":
    main()
