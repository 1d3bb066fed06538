"""Tracks the authors of the texts that the steps of a plan use."""

from __future__ import annotations

from pagantic_common.domain.text.json_text import dump_json
from services.orchestrator.core.conversation.provenance import provenance_of
from services.orchestrator.core.execution.progress import Progress
from services.orchestrator.core.model.plan import Plan, StepKind
from services.orchestrator.core.tools.taint import Provenance
from services.orchestrator.core.turn.run import Run


def provenance_of_plan(run: Run, plan: Plan, progress: Progress) -> Provenance:
    """Return the provenance of the request, and of the results of all steps and tool calls so far."""
    provenance = provenance_of(run.request, run.prepared)
    if run.request.plan is not None:  # A model did not make the plan.
        for step in plan.steps:
            provenance.trust_values(dump_json(step.parameters))
    for ended in progress.steps:
        if ended.result.output is not None:
            for chunk in ended.result.output.chunks:
                provenance.distrust(chunk.content, chunk.source or ended.result.name)
            if ended.result.kind == StepKind.WAIT:  # The output is the payload of a signal.
                provenance.distrust(ended.result.output.text, ended.result.name)
    for record in progress.records:
        provenance.add_result(record.name, record.id, record.arguments_json, record.result)
    return provenance
