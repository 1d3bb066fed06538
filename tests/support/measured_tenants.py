"""`python -m tests.support.measured_tenants COUNT`: executions of so many tenants, and the series of the metrics then.

Each tenant has a session, a model and a collection with names of its own. It prints the number of series after the
first hundred and after all, and the names of all labels.
"""

import asyncio
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from pagantic.context.v1 import policy_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.domain.calls.principal import Principal, PrincipalKind, Scope
from pagantic_common.rpc.call import call_unary
from pagantic_common.telemetry.metrics import install_metrics
from services.orchestrator.app.policy.observe import observe
from tests.support.orchestrator_app import orchestrator, system_request
from tests.support.scripted_services import scripted_services

FIRST = 100
AT_ONCE = 8


class ByName:
    """Takes the credentials of a call for the name of its tenant."""

    async def authenticate(self, credentials):
        return Principal(credentials, credentials, PrincipalKind.API_KEY, frozenset(Scope))


async def measure(count, folder):
    reader = InMemoryMetricReader()
    install_metrics("tests", [reader])
    services = replace(scripted_services(), around=(observe,))
    counts = []
    async with orchestrator(folder, services, authenticator=ByName()) as stub:
        for numbers in (range(FIRST), range(FIRST, count)):
            places = asyncio.Semaphore(AT_ONCE)
            await asyncio.gather(*(_ask(stub, f"tenant-{number}", places) for number in numbers))
            counts.append(len(_points(reader)))
    labels = sorted({label for point in _points(reader) for label in point.attributes})
    return {"after_first": counts[0], "after_all": counts[1], "labels": labels}


async def _ask(stub, name, places):
    async with places:
        hints = execution_pb2.ExecutionHints(model=f"model-of-{name}")
        context = policy_pb2.ContextPolicy(collection=f"papers-of-{name}")
        asked = system_request(session_id=f"session-of-{name}", hints=hints, context=context)
        await call_unary("orchestrator", stub.Execute, asked, 60, credentials=name)


def _points(reader):
    data = reader.get_metrics_data()
    return [
        point
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    ]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as path:
        print(json.dumps(asyncio.run(measure(int(sys.argv[1]), Path(path)))))  # noqa: T201
