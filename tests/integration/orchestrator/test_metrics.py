"""Metrics of the orchestrator, in a process of its own: a process has one meter provider."""

from tests.support import measured_tenants
from tests.support.measured import run_measured


def test_the_series_do_not_grow_with_tenants_sessions_models_and_collections():
    counted = run_measured(measured_tenants, 300)
    assert counted["after_first"] == counted["after_all"]
    assert {"gen_ai.operation.name", "mode", "grpc.method"} <= set(counted["labels"])
    assert not {"tenant", "session_id", "gen_ai.request.model", "gen_ai.data_source.id"} & set(counted["labels"])
