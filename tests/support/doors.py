"""Servers of tests let everybody in."""

from google.protobuf import descriptor_pool

import pagantic.orchestrator.v1.orchestrator_service_pb2
import pagantic.tools.v1.tools_service_pb2  # noqa: F401
from pagantic_common.domain.calls.principal import Scope


def open_to_all(service_name):
    """Return a scope for each method of a service."""
    service = descriptor_pool.Default().FindServiceByName(service_name)
    return {method.name: Scope.EXECUTE for method in service.methods}
