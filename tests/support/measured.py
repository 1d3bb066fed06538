"""Programs that count metrics, each in a process of its own: a process has one meter provider."""

import json
import subprocess
import sys


def run_measured(module, count):
    """Run a module of these programs with a count, and return what it prints last, as JSON."""
    command = [sys.executable, "-m", module.__name__, str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
