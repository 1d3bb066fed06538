"""Each method of every service has a scope, beside its servicer."""

import importlib

import pytest
from google.protobuf import descriptor_pool

from pagantic_common.domain.calls.principal import Scope

SERVICES = {
    "orchestrator": "pagantic.orchestrator.v1.OrchestratorService",
    "inference": "pagantic.inference.v1.InferenceService",
    "constraint": "pagantic.constraint.v1.ConstraintService",
    "context": "pagantic.context.v1.ContextService",
    "rerank": "pagantic.rerank.v1.RerankService",
    "tools": "pagantic.tools.v1.ToolService",
}


@pytest.mark.parametrize(("area", "name"), SERVICES.items())
def test_every_method_has_a_scope(area, name):
    scopes = importlib.import_module(f"services.{area}.servicer").SCOPES
    methods = {method.name for method in descriptor_pool.Default().FindServiceByName(name).methods}
    assert scopes.keys() == methods
    assert set(scopes.values()) <= set(Scope)
