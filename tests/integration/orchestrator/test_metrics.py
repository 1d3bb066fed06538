"""Metrics of the orchestrator, in a process of its own: a process has one meter provider."""

import json
import subprocess
import sys

from tests.support import measured_tenants


def test_the_series_do_not_grow_with_tenants_sessions_models_and_collections():
    done = subprocess.run(
        [sys.executable, "-m", measured_tenants.__name__, "300"],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    counted = json.loads(done.stdout.splitlines()[-1])
    assert counted["after_first"] == counted["after_all"]
    assert {"gen_ai.operation.name", "mode", "grpc.method"} <= set(counted["labels"])
    assert not {"tenant", "session_id", "gen_ai.request.model", "gen_ai.data_source.id"} & set(counted["labels"])
