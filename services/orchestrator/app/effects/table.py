"""Maps each command to its effect."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from services.orchestrator.app.effects.enforcing import enforce
from services.orchestrator.app.effects.guarding.checking import check_input
from services.orchestrator.app.effects.inference.inferring import decide, infer
from services.orchestrator.app.effects.inference.sampling import sample
from services.orchestrator.app.effects.plan_steps.running import run_plan
from services.orchestrator.app.effects.planning import make_plan
from services.orchestrator.app.effects.preparing import prepare
from services.orchestrator.app.effects.scope import Effect
from services.orchestrator.app.effects.tools.calling import call_tools
from services.orchestrator.core.execution.commands import (
    CheckInput,
    Command,
    Decide,
    Enforce,
    Infer,
    MakePlan,
    Prepare,
    RunPlan,
    RunTools,
    Sample,
)

EFFECTS: Mapping[type[Command], Effect] = MappingProxyType(
    {
        CheckInput: check_input,
        MakePlan: make_plan,
        Prepare: prepare,
        Infer: infer,
        Sample: sample,
        Decide: decide,
        RunTools: call_tools,
        Enforce: enforce,
        RunPlan: run_plan,
    }
)
