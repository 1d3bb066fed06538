"""A sample of `make soak-replicas`: hosts as network namespaces, of which one is killed under load."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.soak.replicas.hosts import why_not
from tests.support.needs import NAMESPACES, POSTGRESQL, skip_without
from tests.support.postgres import find_programs

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(180)
def test_a_killed_replica_loses_no_call():
    if why_not():
        skip_without(NAMESPACES)
    if find_programs() is None:
        skip_without(POSTGRESQL)
    sample = ("--events", "kill=1", "--rest", "2", "--settle", "1")
    done = subprocess.run(
        [sys.executable, "-m", "tests.soak.replicas", *sample], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 calls failed that may not, 0 other faults" in done.stdout
