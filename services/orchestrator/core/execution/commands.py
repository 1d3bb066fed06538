"""Defines the commands of a run, and the input that answers each command."""

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
    """The command to have the deployment's guards check the request."""


@dataclass(frozen=True, slots=True)
class Prepare:
    """The command to resolve the history, the context, the tools and the constraint."""


@dataclass(frozen=True, slots=True)
class Infer:
    """The command to run an inference, after a wait if `retry` is above 0. A `text_prompt` replaces the messages.

    If `is_streamed` is set, the text is streamed to the caller. Calls of `client_tools` are always streamed. A
    `max_tokens` of 0 and a `temperature` of None select the values of the hints.
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
    """The command to run the replicas of one prompt, and to apply the constraint to each output once it is complete."""

    messages: tuple[Message, ...]
    engine_text: str
    is_fully_enforced: bool
    voting: Voting
    temperature: float
    seed: int | None


@dataclass(frozen=True, slots=True)
class Decide:
    """The command to score the labels of each question with the model.

    `calibration` is the name of a calibration, or an empty string for no calibration.
    """

    messages: tuple[Message, ...]
    questions: tuple[AskedQuestion, ...]
    calibration: str = ""


@dataclass(frozen=True, slots=True)
class RunTools:
    """The command to run the calls of one round, which are independent of each other."""

    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True)
class Enforce:
    """The command to run the constraint pipeline on an output."""

    output: str
    is_decoder_enforced: bool


@dataclass(frozen=True, slots=True)
class MakePlan:
    """The command to have the planner make a plan for the request."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The command to run the steps of an accepted plan."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class Finish:
    """The command to deliver the response, and to add the messages of `turn` to the conversation.

    `turn` is empty if the turn failed.
    """

    response: Response
    turn: tuple[Message, ...] = ()


Command = CheckInput | Prepare | Infer | Sample | Decide | RunTools | Enforce | MakePlan | RunPlan | Finish

# Maps each command to its answer. Failed answers every command except Finish, which has no answer.
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
