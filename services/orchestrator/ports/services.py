"""The other services. All methods raise PaganticError."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pagantic_common.domain.chunks import Chunk
from pagantic_common.domain.messages import Message, ModelInfo, ToolCall, ToolDefinition, ToolProgress
from pagantic_common.domain.usage import TokenUsage
from pagantic_common.domain.validation import Enforcement
from services.orchestrator.core.conversation.memory import Summary
from services.orchestrator.core.execution.commands import Decide, Infer, Sample
from services.orchestrator.core.model.contract import OutputContract
from services.orchestrator.core.model.keys import SessionKey
from services.orchestrator.core.model.request import Hints, Request, TemplateCall
from services.orchestrator.core.model.response import CandidateOutput, InferenceDelta, InferenceOutput, ToolCallRecord
from services.orchestrator.core.model.retrieval import ContextPolicy, RankingOptions


@dataclass(frozen=True, slots=True)
class CompiledConstraint:
    """The decoder's form of a constraint; `is_fully_enforced` if it covers the whole source.

    `unsupported` lists the schema's keywords that the decoder does not enforce, with their places if known.
    """

    engine_text: str
    is_fully_enforced: bool
    unsupported: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BuiltContext:
    """The context message of a turn, None without chunks, its chunks, and the number of chunks without vectors."""

    message: Message | None
    chunks: tuple[Chunk, ...] = ()
    token_count: int = 0
    unembedded_count: int = 0


@dataclass(frozen=True, slots=True)
class Ranking:
    """The options of a reranking; an empty scorer is the default scorer, top_k 0 keeps all."""

    scorer: str = ""
    min_score: float | None = None
    top_k: int = 0
    options: RankingOptions = field(default_factory=RankingOptions)


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A registered tool, whether it can be called now, why not, and its origin, empty for the deployment."""

    definition: ToolDefinition
    is_available: bool
    unavailable_reason: str = ""
    origin: str = ""


@dataclass(frozen=True, slots=True)
class TokenCount:
    """The tokens of a prompt and of each text, and the context window; a window of 0 is unknown.

    `is_estimate` is set if another engine serves the model, so that its exact tokens are unknown.
    """

    chat: int
    texts: tuple[int, ...]
    context_window: int
    is_estimate: bool = False


@dataclass(frozen=True, slots=True)
class Vectors:
    """The vectors of texts, in their order, and the usage."""

    values: tuple[Sequence[float], ...]
    usage: TokenUsage = TokenUsage()


@dataclass(frozen=True, slots=True)
class PairScores:
    """Relevance of texts to a query, in their order, without bounds, and the usage."""

    values: tuple[float, ...]
    usage: TokenUsage = TokenUsage()


@dataclass(frozen=True, slots=True)
class Scores:
    """The natural logarithms of the probabilities of continuations, in their order, and the usage."""

    logprobs: tuple[float, ...]
    usage: TokenUsage = TokenUsage()


@dataclass(frozen=True, slots=True)
class QuestionScores:
    """The natural logarithms of the probabilities of each question's labels, the usage, and the model that served."""

    logprobs: tuple[tuple[float, ...], ...]
    usage: TokenUsage = TokenUsage()
    model: str = ""


# The function of a registered kind of step: (text of its input, parameters) -> text. It must be idempotent, because it
# may run again after a failure or an interruption.
Report = Callable[[ToolProgress], Awaitable[None]]
CustomStep = Callable[[str, Mapping[str, Any]], Awaitable[str]]


class InferencePort(Protocol):
    """The inference service."""

    async def count_tokens(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], texts: Sequence[str], model: str
    ) -> TokenCount:
        """Count the tokens of a conversation, 0 if it is empty, and of each text."""

    async def list_models(self) -> Sequence[ModelInfo]:
        """Return the served models, the default model first."""

    def context_window(self, model: str) -> int:
        """Return the last known context window of the model; 0 if unknown."""

    def infer(self, command: Infer, hints: Hints) -> AsyncGenerator[InferenceDelta | InferenceOutput, None]:
        """Stream the model's text, then the whole output. The first delta comes once the prompt is processed.

        Closing the generator stops decoding.
        """

    def sample(self, command: Sample, hints: Hints) -> AsyncGenerator[CandidateOutput | TokenUsage, None]:
        """Yield the prompt's usage, each candidate with its own usage as it ends, then the usage of all.

        Closing the generator stops decoding.
        """

    async def score(self, command: Infer, hints: Hints, continuations: Sequence[str]) -> Scores:
        """Return the probability of each beginning of the answer, without decoding."""

    async def decide(self, command: Decide, hints: Hints) -> QuestionScores:
        """Return the probabilities of the labels of each question, without decoding."""

    async def embed(self, texts: Sequence[str], model: str) -> Vectors:
        """Return a vector of unit length for each text; an empty alias names the first embedding model."""

    async def score_pairs(self, query: str, texts: Sequence[str], model: str) -> PairScores:
        """Return how relevant each text is to a query; an empty alias names the first cross-encoder."""


class PromptProvider(Protocol):
    """Makes system prompts. A deployment may have a provider of its own."""

    async def system_prompt(self, request: Request, session: Mapping[str, str]) -> str:
        """Return the system prompt of a request, which may be empty; PREPARE calls it once per request.

        `session` has the stored values of the conversation, JSON documents by key, if the request names a template.

        Raises InvalidRequest (CONFIG_INVALID) for an unknown template or variable.
        """


@dataclass(frozen=True, slots=True)
class ConfiguredTemplate:
    """A prompt template: its variables, and the keys of the values of a conversation that it reads."""

    name: str
    variables: tuple[str, ...]
    session_keys: tuple[str, ...]


class TemplateCatalog(Protocol):
    """The prompt templates of the deployment."""

    def templates(self) -> tuple[ConfiguredTemplate, ...]:
        """Return the templates by name."""

    def render(self, template: TemplateCall, session: Mapping[str, str]) -> str:
        """Return the text of a template; `session` has the stored values of a conversation.

        Raises InvalidRequest (CONFIG_INVALID) for an unknown template, and for a variable that is missing or unknown.
        """


class SummaryStore(Protocol):
    """Summaries of stored conversations; a deleted conversation takes its summary along."""

    async def get_summary(self, key: SessionKey) -> Summary | None:
        """Return the summary of a conversation's oldest messages; None without a summary."""

    async def put_summary(self, key: SessionKey, summary: Summary) -> None:
        """Replace a conversation's summary; does nothing for an unknown conversation."""


class ConstraintPort(Protocol):
    """The constraint service."""

    async def compile(self, output: OutputContract, sources: Sequence[str] = ()) -> CompiledConstraint:
        """Compile the contract's grammar, schema, or citations of these sources for the decoder."""

    async def compile_rules(self, request: Request) -> None:
        """Check the request's rules before there is an output; raises InvalidRequest for an invalid rule."""

    async def enforce(
        self, text: str, request: Request, *, is_decoder_enforced: bool, sources: Sequence[str] = ()
    ) -> Enforcement:
        """Run the pipeline that the request declares; citations quote these sources."""


class ToolsPort(Protocol):
    """The tools service."""

    async def list_tools(self, names: Sequence[str]) -> list[OfferedTool]:
        """List the named tools, or all. Raises NotFound (TOOL_NOT_FOUND) for an unknown name."""

    async def search_tools(self, query: str, names: Sequence[str], limit: int) -> list[str]:
        """Return the named tools that match a query, best first, at most `limit`."""

    async def execute(self, call: ToolCall, report: Report) -> ToolCallRecord:
        """Run a call, and report its progress; the record has the tool's own failure."""


class ContextPort(Protocol):
    """The context and rerank services."""

    async def build(
        self, query: str, policy: ContextPolicy, model: str, more_queries: Sequence[str] = ()
    ) -> BuiltContext:
        """Retrieve by a query and additional queries, rerank by the query if the policy says so, and lay out."""

    async def retrieve(self, query: str, policy: ContextPolicy) -> tuple[Chunk, ...]:
        """Return chunks, best first. Raises NotFound for an unknown collection."""

    async def rerank(self, query: str, chunks: Sequence[Chunk], ranking: Ranking) -> tuple[Chunk, ...]:
        """Return the chunks in a new order, without those below min_score."""
