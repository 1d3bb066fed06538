"""The packages of a program in Node.js, as its lock file has them."""

import shutil
import subprocess

from tests.support import needs


def installed(folder):
    """Return a folder of a Node program with the packages that it needs; skips the test where there is no Node."""
    if not (shutil.which("node") and shutil.which("npm")):
        needs.skip_without(needs.NODE)
    if not (folder / "node_modules").is_dir():
        command = [shutil.which("npm"), "ci", "--ignore-scripts", "--no-fund", "--no-audit"]
        subprocess.run(command, cwd=folder, check=True, timeout=100)
    return folder
