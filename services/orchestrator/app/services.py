"""The services that the orchestrator connects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pagantic_common.domain.text.calibration import LabelCalibration
from services.orchestrator.app.approvals import Approvals
from services.orchestrator.core.admission.experiments import Experiments
from services.orchestrator.core.conversation.memory import MemoryPolicy
from services.orchestrator.core.plans.planning import Planner
from services.orchestrator.core.tools.policy import ToolPolicy
from services.orchestrator.ports.guards import Guards
from services.orchestrator.ports.services import (
    ConstraintPort,
    ContextPort,
    CustomStep,
    InferencePort,
    PromptProvider,
    SummaryStore,
    ToolsPort,
)


@dataclass(frozen=True, slots=True)
class Services:
    """The services and settings of a run.

    `approvals` stores the tool calls that wait for an approval. `tool_policy` is the deployment's policy.
    `max_offered_tool_bytes` limits the size of the registered tools that a model is offered, unless the request names
    the tools; 0 means no limit. `custom_steps` maps the names of the deployment's step kinds to their steps.
    `calibrations`, `guards` and `experiments` also belong to the deployment. If `guards` is None, there are no guards.
    """

    inference: InferencePort
    constraint: ConstraintPort
    tools: ToolsPort
    context: ContextPort
    prompts: PromptProvider
    summaries: SummaryStore
    approvals: Approvals
    planner: Planner = Planner.STATIC
    memory: MemoryPolicy = field(default_factory=MemoryPolicy)
    tool_policy: ToolPolicy = ToolPolicy()
    max_offered_tool_bytes: int = 0
    custom_steps: Mapping[str, CustomStep] = field(default_factory=dict)
    calibrations: Mapping[str, LabelCalibration] = field(default_factory=dict)
    guards: Guards | None = None
    experiments: Experiments = field(default_factory=Experiments)
