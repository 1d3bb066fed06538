"""Defines a request and its parts, such as hints, the system prompt and experiment variants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from pagantic_common.domain.calls.principal import DEFAULT_TENANT
from pagantic_common.domain.messages import Message, ToolChoice, ToolChoiceMode, ToolDefinition
from services.orchestrator.core.model.contract import OutputContract, ReplayPolicy, RetryPolicy, Rule
from services.orchestrator.core.model.decision import Decisions
from services.orchestrator.core.model.keys import Account, ExecutionKey, SessionKey
from services.orchestrator.core.model.plan import Plan
from services.orchestrator.core.model.retrieval import ContextPolicy
from services.orchestrator.core.model.voting import Voting
from services.orchestrator.core.tools.policy import ToolPolicy

DEFAULT_MAX_TOOL_ROUNDS = 20


class Mode(StrEnum):
    """The kind of work requested."""

    CHAT = "CHAT"
    STRUCTURED = "STRUCTURED"
    PLAN = "PLAN"
    REDUNDANT = "REDUNDANT"
    DECIDE = "DECIDE"


class ReasoningMode(StrEnum):
    """Whether a reasoning model thinks before it answers."""

    AUTO = "AUTO"
    ON = "ON"
    OFF = "OFF"


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Whether a reasoning model thinks, and the token limit of its reasoning. A limit of 0 means no limit."""

    mode: ReasoningMode = ReasoningMode.AUTO
    max_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Hints:
    """The caller's settings for inferences and tools. None or 0 means that a setting is unset.

    `sampling` contains the other sampling parameters that are set, by their names in the contract.
    """

    max_tokens: int = 0
    timeout_s: float | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    tool_choice: ToolChoice = ToolChoice()
    max_tool_rounds: int = 0
    model: str = ""
    options_json: str = ""
    stop: tuple[str, ...] = ()
    sampling: Mapping[str, int | float] = field(default_factory=dict)
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    top_logprobs: int | None = None
    priority: int = 0
    reasoning: Reasoning = Reasoning()


def side_hints(hints: Hints) -> Hints:
    """Return the hints for an auxiliary inference, such as making a plan or a summary.

    Such an inference has no reasoning, no stop texts and no engine options.
    """
    return Hints(model=hints.model, priority=hints.priority, reasoning=Reasoning(ReasoningMode.OFF))


@dataclass(frozen=True, slots=True)
class TemplateCall:
    """The name of a configured template, and the values of its variables by name."""

    name: str
    variables: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class SystemPrompt:
    """A system prompt: a text, a base text with sets of rules, or a template.

    `is_assembled` is set if the text comes from a prompt provider.
    """

    text: str = ""
    sets: tuple[tuple[str, tuple[str, ...]], ...] = ()
    template: TemplateCall | None = None
    is_assembled: bool = False

    def render(self) -> str:
        """Join the base text and the sets of rules with blank lines.

        A set is a `## name` line followed by `- rule` lines.
        """
        parts = [self.text]
        parts += ["\n".join([f"## {name}", *(f"- {rule}" for rule in rules)]) for name, rules in self.sets]
        return "\n\n".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class ExperimentVariant:
    """The names of an experiment and of one of its variants."""

    experiment: str
    variant: str


@dataclass(frozen=True, slots=True)
class VariantBase:
    """The settings of a request before its variant changed them: model, temperature and prompt template."""

    model: str = ""
    temperature: float | None = None
    template: str = ""


@dataclass(frozen=True, slots=True)
class VariantChoice:
    """The caller's choice about experiments: a named variant, or no participation.

    By default the caller makes no choice.
    """

    named: ExperimentVariant | None = None
    takes_part: bool = True


@dataclass(frozen=True, slots=True)
class Request:
    """A request with its IDs filled in. If `text_prompt` is set, it is continued verbatim, without messages.

    `is_guarded` is set if guards check the request first. `replay` is set if a recorded execution runs again. `variant`
    is the variant assigned at admission, and `base` contains the settings that it overrides. Both are None if no
    variant is assigned.
    """

    request_id: str
    mode: Mode
    messages: tuple[Message, ...]
    session_id: str = ""
    trace_id: str = ""
    prompt: SystemPrompt = SystemPrompt()
    hints: Hints = Hints()
    output: OutputContract = field(default_factory=OutputContract)
    tools: tuple[str, ...] = ()
    context: ContextPolicy | None = None
    rules: tuple[Rule, ...] = ()
    semantic_intent: str = ""
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    voting: Voting = field(default_factory=Voting)
    plan: Plan | None = None
    tenant: str = DEFAULT_TENANT
    subject: str = ""
    client_tools: tuple[ToolDefinition, ...] = ()
    tool_policy: ToolPolicy = ToolPolicy()
    is_background: bool = False
    decisions: Decisions | None = None
    text_prompt: str = ""
    replay: ReplayPolicy | None = None
    is_guarded: bool = False
    choice: VariantChoice = VariantChoice()
    variant: ExperimentVariant | None = None
    base: VariantBase | None = None

    @property
    def account(self) -> Account:
        """The account to which the request's work is charged."""
        return Account(self.tenant, self.subject)

    @property
    def key(self) -> ExecutionKey:
        """The key of the request's execution."""
        return ExecutionKey(self.tenant, self.request_id)

    @property
    def session_key(self) -> SessionKey:
        """The key of the request's conversation."""
        return SessionKey(self.tenant, self.session_id)

    @property
    def is_validated(self) -> bool:
        """Whether VALIDATE checks the output."""
        if self.mode is Mode.DECIDE:
            return False
        return self.mode is not Mode.CHAT or not self.output.is_empty or bool(self.rules or self.semantic_intent)

    @property
    def is_turn(self) -> bool:
        """Whether the request is a turn of a stored conversation."""
        return self.mode is Mode.CHAT and bool(self.session_id)

    @property
    def max_tool_rounds(self) -> int:
        """The maximum number of inference rounds in the tool loop."""
        return self.hints.max_tool_rounds or DEFAULT_MAX_TOOL_ROUNDS

    @property
    def may_call_tools(self) -> bool:
        """Whether the model may call any tool."""
        if self.text_prompt:
            return False
        return self.hints.tool_choice.mode is not ToolChoiceMode.NONE or bool(self.hints.tool_choice.tool_name)

    @property
    def offers_registered_tools(self) -> bool:
        """Whether registered tools are looked up.

        CHAT offers all of them if the request neither sends nor names tools.
        """
        if not self.may_call_tools:
            return False
        return bool(self.tools) or (self.mode is Mode.CHAT and not self.client_tools)

    @property
    def client_tool_names(self) -> frozenset[str]:
        """The names of the tools that the caller runs."""
        return frozenset(tool.name for tool in self.client_tools)


@dataclass(frozen=True, slots=True)
class KeptRequest:
    """The encoded original request without its metadata, and the metadata."""

    encoded: bytes
    metadata: Mapping[str, str] = field(default_factory=dict)
