"""The services that the orchestrator is the hub of."""

from __future__ import annotations

from dataclasses import dataclass

from services.orchestrator.core.planning import Planner
from services.orchestrator.ports.services import ConstraintPort, ContextPort, InferencePort, ToolsPort


@dataclass(frozen=True, slots=True)
class Services:
    """The services that a run works with, and who plans."""

    inference: InferencePort
    constraint: ConstraintPort
    tools: ToolsPort
    context: ContextPort
    planner: Planner = Planner.STATIC
