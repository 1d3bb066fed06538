"""What a run is made of: what happens to it, what it asks for, and what it knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from pagantic_common.domain.errors import Failure
from pagantic_common.domain.json_text import JsonTextError, parse_json
from pagantic_common.domain.messages import Message, ToolCall, ToolChoice, ToolDefinition
from pagantic_common.domain.usage import TokenUsage
from pagantic_common.domain.validation import Enforcement
from services.orchestrator.core.lifecycle import State
from services.orchestrator.core.plan import Plan, PlanPolicy, StepResult
from services.orchestrator.core.request import Request
from services.orchestrator.core.response import InferenceOutput, Response, ToolCallRecord
from services.orchestrator.core.response_warning import ResponseWarning
from services.orchestrator.core.voting import Count, Voting


@dataclass(frozen=True, slots=True)
class Prepared:
    """What PREPARE resolved; `engine_text` is empty when the decoder is free, `is_fully_enforced` is of the schema.

    `warnings` are what could not be resolved, without failing the request. The last of the history are the messages of
    the stored conversation at the positions from `history_start` to `history_end`; a summary of others may come before.
    """

    system_prompt: str = ""
    history: tuple[Message, ...] = ()
    history_start: int = 0
    history_end: int = 0
    context_message: Message | None = None
    retrieval_confidence: float | None = None
    tools: tuple[ToolDefinition, ...] = ()
    engine_text: str = ""
    is_fully_enforced: bool = False
    usage: TokenUsage = TokenUsage()
    warnings: tuple[ResponseWarning, ...] = ()


@dataclass(frozen=True, slots=True)
class Inferred:
    """An inference ended."""

    output: InferenceOutput


@dataclass(frozen=True, slots=True)
class ToolsRan:
    """All calls of one model turn ended, in call order."""

    records: tuple[ToolCallRecord, ...]


@dataclass(frozen=True, slots=True)
class Enforced:
    """The constraint pipeline ended."""

    enforcement: Enforcement


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica's end: what the pipeline found of its output, or why it has none."""

    index: int
    enforcement: Enforcement | None = None
    failure: Failure | None = None

    @property
    def is_valid_vote(self) -> bool:
        """Whether it votes; else it abstains."""
        if self.enforcement is None or not self.enforcement.valid or self.failure is not None:
            return False
        try:
            parse_json(self.enforcement.structured_output_json, is_rewritable=True)
        except JsonTextError:  # a number beyond a double, half of a surrogate pair: not canonical, so not comparable
            return False
        return True


@dataclass(frozen=True, slots=True)
class Sampled:
    """The replicas ended, or as many as decide the vote; `seed` is that of replica 0."""

    replicas: tuple[Replica, ...]
    usage: TokenUsage
    seed: int | None = None
    model: str = ""


@dataclass(frozen=True, slots=True)
class Planned:
    """The planner made a plan."""

    plan: Plan
    usage: TokenUsage
    model: str = ""


@dataclass(frozen=True, slots=True)
class PlanRan:
    """The plan's steps ended, all or up to the first that failed; `enforcement` is of the final step's output."""

    results: tuple[StepResult, ...]
    records: tuple[ToolCallRecord, ...] = ()
    enforcement: Enforcement | None = None
    model: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """Something failed that the machine cannot mend, or the execution was cancelled.

    `records` are tool calls that ended although their turn did not, `results` steps that ended although their plan
    did not, `replicas` and `usage` what ended of a vote, `output` what an inference had given when it was stopped.
    """

    failure: Failure
    records: tuple[ToolCallRecord, ...] = ()
    results: tuple[StepResult, ...] = ()
    replicas: tuple[Replica, ...] = ()
    usage: TokenUsage = TokenUsage()
    output: InferenceOutput | None = None


Input = Prepared | Inferred | Sampled | ToolsRan | Enforced | Planned | PlanRan | Failed


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


@dataclass(frozen=True, slots=True)
class DiscardedAttempt:
    """An attempt of which what was streamed no longer counts."""

    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class Transition:
    """The lifecycle moved; `source` is None when the execution was admitted."""

    source: State | None
    target: State
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class Run:
    """Everything that the machine knows of an execution."""

    request: Request
    state: State = State.INIT
    outstanding: Command | None = None  # None only inside a step
    attempt: int = 1
    prepared: Prepared = Prepared()
    transcript: tuple[Message, ...] = ()  # what the model saw after the request
    turn: tuple[Message, ...] = ()  # of it, what a conversation keeps: not the attempts that were discarded
    rounds: int = 0
    is_in_tool_phase: bool = False
    has_tools_left: bool = True  # until the model only repeats itself
    max_tokens: int = 0  # a limit that a retry raised
    cut: Failure | None = None  # why the attempt at hand is not complete
    streamed: InferenceOutput | None = None  # the partial output of a stopped inference
    seed: int | None = None
    model: str = ""  # the alias that served
    records: tuple[ToolCallRecord, ...] = ()
    usage: TokenUsage = TokenUsage()
    output: InferenceOutput | None = None
    latest: tuple[ToolCallRecord, ...] = ()  # records of the last round of tool calls
    best: Enforcement | None = None
    best_output: InferenceOutput | None = None  # the output that `best` judges
    repair_attempts: int = 0
    last_failure: Failure | None = None
    replicas: tuple[Replica, ...] = ()
    count: Count | None = None
    plan: Plan | None = None
    bounds: PlanPolicy = field(default_factory=PlanPolicy)
    results: tuple[StepResult, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step gave: the run, how it moved, and the attempt that the step discarded."""

    run: Run
    transitions: tuple[Transition, ...] = ()
    discarded: DiscardedAttempt | None = None

    @property
    def command(self) -> Command:
        """The one command that is outstanding."""
        if self.run.outstanding is None:
            raise AssertionError(f"nothing is outstanding in {self.run.state}")
        return self.run.outstanding
