"""The packages of a program in Node.js, as its lock file has them."""

import fcntl
import shutil
import subprocess

from tests.support import needs

INSTALL_S = 200


def installed(folder, programs=("node", "npm")):
    """Return a folder of a Node program with the packages that it needs; skips the test where a program is missing."""
    if not all(map(shutil.which, programs)):
        needs.skip_without(needs.NODE)
    # Several processes run the tests, and npm deletes what another one installs at the same time.
    with (folder / "package.json").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "node_modules").is_dir():
            _install(folder)
    return folder


def _install(folder):
    """Install all packages, or none: a folder that is there is whole."""
    command = [shutil.which("npm"), "ci", "--ignore-scripts", "--no-fund", "--no-audit"]
    try:
        subprocess.run(command, cwd=folder, check=True, timeout=INSTALL_S, stdout=subprocess.DEVNULL)
    except BaseException:
        shutil.rmtree(folder / "node_modules", ignore_errors=True)
        raise
