"""`python -m tests.support.measured_variants COUNT`: the metrics of so many sessions with an experiment, by variant.

It prints the variants of the responses, and for each metric the sum of its points (of histograms the number) by variant
and error code. The variant `broken` names a model that no policy permits.
"""

import asyncio
import json
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from pagantic.constraint.v1 import contract_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.domain.errors import ErrorCode, PermissionDenied
from pagantic_common.telemetry.metrics import install_metrics
from services.orchestrator.app.policy.observe import observe
from services.orchestrator.core.admission.experiments import Experiment, Experiments, Variant
from services.orchestrator.core.cost import Prices
from tests.support.orchestrator_app import execute, orchestrator, system_request
from tests.support.scripted_services import ScriptedInference, answer, scripted_services

MODELS = Experiment("models", (Variant("control", 50), Variant("broken", 50, model="broken")))


class BreakingInference(ScriptedInference):
    """Answers JSON with every model but one."""

    async def infer(self, command, hints):
        if hints.model == "broken":
            raise PermissionDenied("no policy permits it", code=ErrorCode.AUTH_POLICY)
        async for piece in super().infer(command, hints):
            yield piece


async def measure(count, folder):
    reader = InMemoryMetricReader()
    install_metrics("tests", [reader])
    services = replace(scripted_services(inference=BreakingInference(answer("{}"))), around=(observe,))
    services = replace(services, experiments=Experiments((MODELS,)))
    given = Counter()
    async with orchestrator(folder, services, prices={"": Prices(1.0, 1.0, 1.0)}) as stub:
        for number in range(count):
            asked = system_request(
                mode=execution_pb2.MODE_STRUCTURED,
                request_id=f"r{number}",
                output=contract_pb2.OutputContract(schema_json="{}"),
            )
            given[(await execute(stub, asked)).variant.variant] += 1
        named = execution_pb2.ExperimentVariant(experiment="models", variant="control")
        await execute(stub, system_request(variant=named))
        await execute(stub, system_request(without_experiments=True))
    return {"given": given, "metrics": _sums(reader)}


def _sums(reader):
    sums = {}
    for resource in reader.get_metrics_data().resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                by_variant = sums.setdefault(metric.name, Counter())
                for point in metric.data.data_points:
                    labels = [point.attributes.get(name, "") for name in ("experiment", "variant", "error_code")]
                    by_variant["/".join(labels)] += getattr(point, "count", None) or point.value
    return sums


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as path:
        print(json.dumps(asyncio.run(measure(int(sys.argv[1]), Path(path)))))  # noqa: T201
