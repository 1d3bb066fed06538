"""What a plan's end has of the request, and the response of its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from services.orchestrator.core.plan import Plan, StepResult, ValueKind
from services.orchestrator.core.request import Request


def with_request_contract(request: Request, plan: Plan) -> Plan:
    """Return a plan with the request's output contract on the final step that has none of its own."""
    if not plan.steps or request.output.is_empty or not plan.steps[-1].output.is_empty:
        return plan
    return replace(plan, steps=(*plan.steps[:-1], replace(plan.steps[-1], output=request.output)))


def content_of(results: Sequence[StepResult]) -> str:
    """Return what the last step that ended gave as text; empty when it gave no text."""
    output = results[-1].output if results else None
    return output.text if output is not None and output.kind in (ValueKind.TEXT, ValueKind.RAW_JSON) else ""
