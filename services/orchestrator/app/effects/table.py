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
from services.orchestrator.core.kernel.command import AnsweredCommand
from services.orchestrator.core.turn.answering import Enforce, Infer, RunTools
from services.orchestrator.core.turn.deciding import Decide
from services.orchestrator.core.turn.plan_steps import RunPlan
from services.orchestrator.core.turn.preparing import CheckInput, MakePlan, Prepare
from services.orchestrator.core.turn.voting import EnforceMerged, Sample

EFFECTS: Mapping[type[AnsweredCommand], Effect] = MappingProxyType(
    {
        CheckInput: check_input,
        MakePlan: make_plan,
        Prepare: prepare,
        Infer: infer,
        Sample: sample,
        Decide: decide,
        RunTools: call_tools,
        Enforce: enforce,
        EnforceMerged: enforce,
        RunPlan: run_plan,
    }
)
