"""Environments of Python with the wheel of this checkout, as users have them."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
_PIP = (sys.executable, "-m", "pip", "-q", "--disable-pip-version-check")


def build_wheel(folder):
    """Build the wheel of this checkout in a folder, and return its path."""
    command = [*_PIP, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", folder, ROOT]
    subprocess.run(command, check=True, cwd=folder)
    (wheel,) = folder.glob("pagantic-*.whl")
    return wheel


class Environment:
    """An environment of Python with the wheel, without the checkout."""

    def __init__(self, folder, python=sys.executable):
        self.programs = folder / "bin"
        self.python = self.programs / "python"
        if python == sys.executable:
            venv.create(folder, symlinks=True)
        else:
            subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True)
        command = [self.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        self.site = Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())

    def install(self, *arguments):
        """Install packages with the pip of the tests."""
        subprocess.run([*_PIP, "--python", self.python, "install", *map(str, arguments)], check=True)

    def share_packages(self):
        """Make the packages of the tests importable too. The checkout is not: its `.pth` file has no effect there."""
        (self.site / "packages_of_the_tests.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")

    def share(self, name):
        """Link the files of a package of the tests into this environment."""
        link_files(importlib.metadata.distribution(name), self.site)


def link_files(distribution, folder):
    """Link the files of an installed distribution into a folder of packages."""
    for file in distribution.files or ():
        source, target = Path(str(distribution.locate_file(file))), folder / file
        if ".." in file.parts or not source.is_file() or target.exists():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(source.resolve())
