"""Defines an inference request and the events that an inference yields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from pagantic_common.domain.messages import Message, ModelInfo, ToolCall, ToolChoice, ToolChoiceMode, ToolDefinition
from pagantic_common.domain.usage import TokenUsage

DEFAULT_MAX_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class Sampling:
    """Rules for picking the next token. The defaults equal llama.cpp's defaults.

    `given` names the fields that the caller has set.
    """

    temperature: float = 0.8
    top_p: float = 0.95
    top_k: int = 40
    min_p: float = 0.05
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    given: frozenset[str] = frozenset()


class ConstraintKind(StrEnum):
    """The language of a decoder constraint."""

    SCHEMA = "schema"
    GBNF = "gbnf"
    REGEX = "regex"
    ENGINE_TEXT = "engine_text"


@dataclass(frozen=True, slots=True)
class Constraint:
    """A constraint on the texts that the decoder may produce."""

    kind: ConstraintKind
    text: str


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation and the tools that the model may call."""

    messages: tuple[Message, ...]
    tools: tuple[ToolDefinition, ...] = ()
    tool_choice: ToolChoice = ToolChoice()

    @property
    def shown(self) -> ChatPrompt:
        """The prompt without empty messages. The last message is kept, because an ending may be added to it."""
        *earlier, last = self.messages
        return replace(self, messages=(*(message for message in earlier if message.is_shown), last))

    def texts(self) -> Iterator[str]:
        """Yield the texts that every template includes in the prompt."""
        for message in self.messages:
            yield message.content
            for call in message.tool_calls:
                yield call.arguments_json
        if self.tool_choice.mode is not ToolChoiceMode.NONE:
            for tool in self.tools:
                yield tool.description
                yield tool.parameters_json


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """A prompt as tokens of the model's tokenizer."""

    tokens: tuple[int, ...]


Prompt = ChatPrompt | TokenPrompt | str


@dataclass(frozen=True, slots=True)
class PromptPrefixes:
    """A caller's keys for the prefixes of a prompt, in order, one key per `block_bytes` of the `prompt_bytes`."""

    keys: tuple[int, ...] = ()
    block_bytes: int = 1
    prompt_bytes: int = 0


NO_PREFIXES = PromptPrefixes()


class ReasoningMode(StrEnum):
    """Whether a reasoning model reasons before it answers."""

    AUTO = "AUTO"
    ON = "ON"
    OFF = "OFF"


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Whether a model reasons, and its maximum number of reasoning tokens.

    A `max_tokens` of 0 sets no limit besides the request's `max_tokens`.
    """

    mode: ReasoningMode = ReasoningMode.AUTO
    max_tokens: int = 0


@dataclass(frozen=True, slots=True)
class InferenceRequest:
    """A prompt and the rules for its continuation.

    A `max_tokens` of 0 selects 2048, or the rest of the context window if smaller. A token in `stop_tokens` ends
    the output like the model's own end token. With `reports_tokens`, deltas include their tokens. The output begins
    with the `said_tokens`.
    """

    prompt: Prompt
    sampling: Sampling = Sampling()
    seed: int | None = None
    constraint: Constraint | None = None
    max_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_tokens: frozenset[int] = frozenset()
    candidate_count: int = 1
    top_logprobs: int | None = None
    priority: int = 0
    reasoning: Reasoning = Reasoning()
    options_json: str = ""
    reports_tokens: bool = False
    prefixes: PromptPrefixes = NO_PREFIXES
    said_tokens: tuple[int, ...] = ()


class FinishReason(StrEnum):
    """The reason for the end of a candidate."""

    STOP = "stop"
    LENGTH = "length"
    TOOL = "tool"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Started:
    """Reports that the prompt was processed."""

    model: ModelInfo
    prompt_tokens: int
    cached_prompt_tokens: int
    seed: int
    inference_id: str = ""


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A part of a tool call.

    The first part of an `index` has `id` and `name`. The arguments of all parts are concatenated.
    """

    index: int
    id: str = ""
    name: str = ""
    arguments_json: str = ""


@dataclass(frozen=True, slots=True)
class ScoreBranch:
    """An ending of a prompt, and the continuations to score after it."""

    ending: str
    continuations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token, its bytes, and its log-probability (natural) before any mask, penalty or temperature."""

    token: int
    piece: bytes
    logprob: float
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Delta:
    """The next text of one candidate, in whole characters.

    `output_tokens` is the candidate's token count so far. `tokens` holds the next tokens if the request asks for them.
    Their text may follow in a later delta.
    """

    candidate_index: int
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    output_tokens: int = 0
    tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CandidateEnd:
    """Reports that a candidate ended.

    `matched_stop` is the stop string or stop token that ended the candidate. `calls_held` means that there are tool
    calls, and that the decoder enforced the schema of the tool on the arguments of each call.
    """

    candidate_index: int
    finish_reason: FinishReason
    output_tokens: int
    tool_calls: tuple[ToolCall, ...] = ()
    constraint_satisfied: bool = False
    matched_stop: str | int | None = None
    calls_held: bool = False


@dataclass(frozen=True, slots=True)
class Completed:
    """Reports that all candidates ended."""

    usage: TokenUsage
    computed_tokens: int = 0


Event = Started | Delta | CandidateEnd | Completed
