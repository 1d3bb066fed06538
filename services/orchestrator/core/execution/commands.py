"""What a run asks for, and which input answers it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pagantic_common.domain.messages import Message, ToolCall, ToolChoice, ToolDefinition
from services.orchestrator.core.execution.inputs import Enforced, Inferred, Input, Planned, PlanRan, Sampled, ToolsRan
from services.orchestrator.core.model.plan import Plan
from services.orchestrator.core.model.prepared import Prepared
from services.orchestrator.core.model.response import Response
from services.orchestrator.core.model.voting import Voting


@dataclass(frozen=True, slots=True)
class Prepare:
    """Resolve history, context, tools and constraint."""


@dataclass(frozen=True, slots=True)
class Infer:
    """Ask the model, after the wait before retry number `retry` where that is not 0.

    `is_streamed` when its text is the answer that the caller gets. `max_tokens` 0 and `temperature`
    None are those of the hints.
    """

    messages: tuple[Message, ...]
    tools: tuple[ToolDefinition, ...]
    tool_choice: ToolChoice
    engine_text: str
    seed: int | None
    retry: int = 0
    is_streamed: bool = True
    max_tokens: int = 0
    temperature: float | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """Ask the model for the replicas of one prompt, each enforced as it ends."""

    messages: tuple[Message, ...]
    engine_text: str
    is_fully_enforced: bool
    voting: Voting
    temperature: float
    seed: int | None


@dataclass(frozen=True, slots=True)
class RunTools:
    """Run the calls of one model turn; they are independent of each other."""

    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True)
class Enforce:
    """Run the constraint pipeline on an output."""

    output: str
    is_decoder_enforced: bool


@dataclass(frozen=True, slots=True)
class MakePlan:
    """Have the planner make a plan for the request."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """Run the steps of an accepted plan."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class Finish:
    """Deliver the response; `turn` is what the conversation gains, empty when the turn failed."""

    response: Response
    turn: tuple[Message, ...] = ()


Command = Prepare | Infer | Sample | RunTools | Enforce | MakePlan | RunPlan | Finish

# Which input answers which command; Failed answers each of them. Nothing answers Finish.
ANSWER_OF: Mapping[type[Command], type[Input]] = MappingProxyType(
    {
        MakePlan: Planned,
        Prepare: Prepared,
        Infer: Inferred,
        Sample: Sampled,
        RunTools: ToolsRan,
        RunPlan: PlanRan,
        Enforce: Enforced,
    }
)
