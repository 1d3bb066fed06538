"""A sample of `make soak-replicas`: hosts as network namespaces, of which one is killed under load."""

import sys

import pytest

from tests.bench.routing.cluster import running
from tests.soak.replicas.hosts import why_not
from tests.support.needs import NAMESPACES, POSTGRESQL, skip_without
from tests.support.postgres import find_programs

LIMIT_S = 150.0


@pytest.mark.whole
@pytest.mark.timeout(180)
def test_a_killed_replica_loses_no_call(tmp_path):
    if why_not():
        skip_without(NAMESPACES)
    if find_programs() is None:
        skip_without(POSTGRESQL)
    sample = ("--events", "kill=1", "--rest", "2", "--settle", "1")
    log = tmp_path / "soak.log"
    with running([sys.executable, "-m", "tests.soak.replicas", *sample], {}, log) as process:
        assert process.wait(LIMIT_S) == 0, log.read_text()
    assert "0 calls failed that may not, 0 other faults" in log.read_text()
