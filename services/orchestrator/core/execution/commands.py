"""The commands of a run, and the input that answers each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pagantic_common.domain.messages import Message, ToolCall, ToolChoice, ToolDefinition
from services.orchestrator.core.conversation.decision_prompt import AskedQuestion
from services.orchestrator.core.execution.inputs import (
    Decided,
    Enforced,
    Inferred,
    Input,
    InputChecked,
    Planned,
    PlanRan,
    Sampled,
    ToolsRan,
)
from services.orchestrator.core.model.plan import Plan
from services.orchestrator.core.model.prepared import Prepared
from services.orchestrator.core.model.response import Response
from services.orchestrator.core.model.voting import Voting


@dataclass(frozen=True, slots=True)
class CheckInput:
    """Have the guards of the deployment read the request."""


@dataclass(frozen=True, slots=True)
class Prepare:
    """Resolve history, context, tools and constraint."""


@dataclass(frozen=True, slots=True)
class Infer:
    """Run an inference; a `retry` above 0 waits first. `text_prompt` replaces the messages.

    With `is_streamed` the text streams to the caller; calls of `client_tools` always do. `max_tokens` 0 and
    `temperature` None use the hints.
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
    client_tools: frozenset[str] = frozenset()
    text_prompt: str = ""


@dataclass(frozen=True, slots=True)
class Sample:
    """Run the replicas of one prompt, each enforced as it ends."""

    messages: tuple[Message, ...]
    engine_text: str
    is_fully_enforced: bool
    voting: Voting
    temperature: float
    seed: int | None


@dataclass(frozen=True, slots=True)
class Decide:
    """Score the labels of each question with the model; `calibration` is a name, empty for no calibration."""

    messages: tuple[Message, ...]
    questions: tuple[AskedQuestion, ...]
    calibration: str = ""


@dataclass(frozen=True, slots=True)
class RunTools:
    """Run the calls of one round, which are independent of each other."""

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
    """Deliver the response and add the messages of `turn` to the conversation; `turn` is empty if the turn failed."""

    response: Response
    turn: tuple[Message, ...] = ()


Command = CheckInput | Prepare | Infer | Sample | Decide | RunTools | Enforce | MakePlan | RunPlan | Finish

# The answer to each command. Failed answers every command except Finish, which has no answer.
ANSWER_OF: Mapping[type[Command], type[Input]] = MappingProxyType(
    {
        CheckInput: InputChecked,
        MakePlan: Planned,
        Prepare: Prepared,
        Infer: Inferred,
        Sample: Sampled,
        Decide: Decided,
        RunTools: ToolsRan,
        RunPlan: PlanRan,
        Enforce: Enforced,
    }
)
