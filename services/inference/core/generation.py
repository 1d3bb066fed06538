"""The request of an inference, and the events of its run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from pagantic_common.domain.messages import Message, ModelInfo, ToolCall, ToolChoice, ToolChoiceMode, ToolDefinition
from pagantic_common.domain.usage import TokenUsage

DEFAULT_MAX_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class Sampling:
    """Rules for picking the next token, by default llama.cpp's; `given` names the fields that the caller has set."""

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
    """The texts that the decoder allows."""

    kind: ConstraintKind
    text: str


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation and the tools that the model may call."""

    messages: tuple[Message, ...]
    tools: tuple[ToolDefinition, ...] = ()
    tool_choice: ToolChoice = ToolChoice()

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
    """A prompt as tokens of the model's own tokenizer."""

    tokens: tuple[int, ...]


Prompt = ChatPrompt | TokenPrompt | str


@dataclass(frozen=True, slots=True)
class PromptPrefixes:
    """A caller's keys of the prefixes of a prompt, in order: one per `block_bytes` of the `prompt_bytes`."""

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
    """Whether a model reasons, and its maximum tokens of reasoning; 0 is no limit besides `max_tokens`."""

    mode: ReasoningMode = ReasoningMode.AUTO
    max_tokens: int = 0


@dataclass(frozen=True, slots=True)
class InferenceRequest:
    """A prompt and how to continue it; `max_tokens` 0 is 2048, or the rest of the context window if that is less.

    A token of `stop_tokens` ends the output like the model's own end token. `reports_tokens` adds the tokens of deltas.
    The output begins with the `said_tokens`.
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
    """Why a candidate ended."""

    STOP = "stop"
    LENGTH = "length"
    TOOL = "tool"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Started:
    """The prompt was processed."""

    model: ModelInfo
    prompt_tokens: int
    cached_prompt_tokens: int
    seed: int
    inference_id: str = ""


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A part of a tool call; the first part of an `index` has `id` and `name`, and the arguments concatenate."""

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
    """A token, its bytes, and the natural logarithm of its probability before any mask, penalty or temperature."""

    token: int
    piece: bytes
    logprob: float
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Delta:
    """The next text of one candidate, in whole characters; `output_tokens` counts the candidate's tokens so far.

    `tokens` has the next tokens if the request wants them. Their text may come with a later delta.
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
    """One candidate ended; `matched_stop` is the stop string or the token of `stop_tokens` that ended it."""

    candidate_index: int
    finish_reason: FinishReason
    output_tokens: int
    tool_calls: tuple[ToolCall, ...] = ()
    constraint_satisfied: bool = False
    matched_stop: str | int | None = None


@dataclass(frozen=True, slots=True)
class Completed:
    """All candidates ended."""

    usage: TokenUsage
    computed_tokens: int = 0


Event = Started | Delta | CandidateEnd | Completed
