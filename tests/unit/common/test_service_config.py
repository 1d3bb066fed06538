"""The table of calls that are tried again, against the services that there are."""

import json

import pytest

from pagantic.constraint.v1 import constraint_service_pb2
from pagantic.context.v1 import context_service_pb2
from pagantic.inference.v1 import inference_service_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2
from pagantic.rerank.v1 import rerank_service_pb2
from pagantic.tools.v1 import tools_service_pb2
from pagantic_common.rpc.service_config import RETRIED_METHODS, service_config

# What changes something, or runs something that may.
MADE_ONCE = {
    "inference": {"CancelCandidates", "LoadModel", "UnloadModel", "WatchReplica"},
    "constraint": set(),
    "context": {"CreateCollection", "DeleteCollection", "Ingest", "IngestFiles", "IngestFolder", "Delete", "Reembed"},
    "rerank": set(),
    "tools": {
        *("ExecuteTool", "ExecuteToolStream", "RegisterMcpServer", "RemoveMcpServer"),
        *("OfferTools", "AnswerToolCall", "AnswerHealthCheck"),
    },
    "orchestrator": {
        method.name for method in orchestrator_service_pb2.DESCRIPTOR.services_by_name["OrchestratorService"].methods
    },
}
MODULES = (
    inference_service_pb2,
    constraint_service_pb2,
    context_service_pb2,
    rerank_service_pb2,
    tools_service_pb2,
    orchestrator_service_pb2,
)


@pytest.mark.parametrize("module", MODULES)
def test_every_method_is_tried_again_or_known_to_be_made_once(module):
    services = module.DESCRIPTOR.services_by_name.values()
    retried = {name for service in services for name in RETRIED_METHODS.get(service.full_name, ())}
    made_once = MADE_ONCE[module.DESCRIPTOR.package.split(".")[1]]
    assert retried.isdisjoint(made_once)
    assert retried | made_once == {name for service in services for name in service.methods_by_name}


def test_only_the_named_methods_have_a_policy():
    (entry,) = json.loads(service_config())["methodConfig"]
    named = {(name["service"], name["method"]) for name in entry["name"]}
    assert named == {(service, method) for service, methods in RETRIED_METHODS.items() for method in methods}
