"""The ports to other services. All methods may raise PaganticError."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pagantic_common.domain.chunks import Chunk
from pagantic_common.domain.messages import LostCall, Message, ModelInfo, ToolCall, ToolDefinition, ToolProgress
from pagantic_common.domain.usage import TokenUsage
from pagantic_common.domain.validation import Enforcement
from services.orchestrator.core.conversation.memory import Summary
from services.orchestrator.core.model.contract import OutputContract
from services.orchestrator.core.model.keys import SessionKey
from services.orchestrator.core.model.request import Hints, Request, TemplateCall
from services.orchestrator.core.model.response import CandidateOutput, InferenceDelta, InferenceOutput, ToolCallRecord
from services.orchestrator.core.model.retrieval import ContextPolicy, RankingOptions
from services.orchestrator.core.turn.answering import Infer
from services.orchestrator.core.turn.deciding import Decide
from services.orchestrator.core.turn.voting import Sample


@dataclass(frozen=True, slots=True)
class CompiledConstraint:
    """A constraint in the form required by the decoder.

    `is_fully_enforced` is set if the constraint covers the whole source. `unsupported` lists the schema's keywords that
    the decoder does not enforce, with their locations if known.
    """

    engine_text: str
    is_fully_enforced: bool
    unsupported: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BuiltContext:
    """The context message of a turn, its chunks, its token count, and the number of chunks without vectors.

    `message` is None if there are no chunks.
    """

    message: Message | None
    chunks: tuple[Chunk, ...] = ()
    token_count: int = 0
    unembedded_count: int = 0


@dataclass(frozen=True, slots=True)
class Ranking:
    """The options of a reranking.

    An empty `scorer` selects the default scorer. A `top_k` of 0 keeps all chunks.
    """

    scorer: str = ""
    min_score: float | None = None
    top_k: int = 0
    options: RankingOptions = field(default_factory=RankingOptions)


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A registered tool, and whether it is currently available.

    `unavailable_reason` is the reason that it is unavailable. `origin` is empty for a tool of the deployment.
    """

    definition: ToolDefinition
    is_available: bool
    unavailable_reason: str = ""
    origin: str = ""


@dataclass(frozen=True, slots=True)
class TokenCount:
    """The token counts of a prompt and of each text, and the size of the context window, or 0 if it is unknown.

    `is_estimate` is set if another engine serves the model, so that the exact counts are unknown.
    """

    chat: int
    texts: tuple[int, ...]
    context_window: int
    is_estimate: bool = False


@dataclass(frozen=True, slots=True)
class Vectors:
    """The vectors of texts, in the order of the texts, and the usage."""

    values: tuple[Sequence[float], ...]
    usage: TokenUsage = TokenUsage()


@dataclass(frozen=True, slots=True)
class PairScores:
    """The unbounded relevance scores of texts for a query, in the order of the texts, and the usage."""

    values: tuple[float, ...]
    usage: TokenUsage = TokenUsage()


@dataclass(frozen=True, slots=True)
class Scores:
    """The natural logarithms of the probabilities of continuations, in order, and the usage."""

    logprobs: tuple[float, ...]
    usage: TokenUsage = TokenUsage()

    @property
    def log_odds(self) -> float:
        """The log-odds of the first of two continuations."""
        first, second = self.logprobs
        return first - second


@dataclass(frozen=True, slots=True)
class QuestionScores:
    """The natural logarithms of the probabilities of each question's labels, the usage, and the serving model."""

    logprobs: tuple[tuple[float, ...], ...]
    usage: TokenUsage = TokenUsage()
    model: str = ""


# The function of a registered step kind: (text of its input, parameters) -> text. The function must be idempotent,
# because it may run again after a failure or an interruption.
Report = Callable[[ToolProgress], Awaitable[None]]
CustomStep = Callable[[str, Mapping[str, Any]], Awaitable[str]]


class InferencePort(Protocol):
    """The inference service: counts tokens, decodes answers, and computes scores and embeddings."""

    async def count_tokens(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], texts: Sequence[str], model: str
    ) -> TokenCount:
        """Count the tokens of a conversation and of each text. An empty conversation has 0 tokens."""

    async def list_models(self) -> Sequence[ModelInfo]:
        """Return the served models, the default model first."""

    def context_window(self, model: str) -> int:
        """Return the last known context window of the model, or 0 if it is unknown."""

    def infer(self, command: Infer, hints: Hints) -> AsyncGenerator[InferenceDelta | InferenceOutput, None]:
        """Yield the pieces of the model's text, then the whole output.

        The first delta is yielded once the prompt is processed. Closing the generator stops decoding.
        """

    def sample(self, command: Sample, hints: Hints) -> AsyncGenerator[CandidateOutput | TokenUsage, None]:
        """Yield the usage of the prompt, then each ended candidate with its usage, then the usage of all candidates.

        Closing the generator stops decoding.
        """

    async def score(self, command: Infer, hints: Hints, continuations: Sequence[str]) -> Scores:
        """Return the log-probability of each continuation as the start of the answer, without decoding."""

    async def decide(self, command: Decide, hints: Hints) -> QuestionScores:
        """Return the log-probabilities of the labels of each question, without decoding."""

    async def embed(self, texts: Sequence[str], model: str) -> Vectors:
        """Return a vector of unit length for each text. An empty alias selects the first embedding model."""

    async def score_pairs(self, query: str, texts: Sequence[str], model: str) -> PairScores:
        """Return the relevance of each text to a query. An empty alias selects the first cross-encoder."""


class PromptProvider(Protocol):
    """Provides system prompts. A deployment may replace the provider."""

    async def system_prompt(self, request: Request, session: Mapping[str, str]) -> str:
        """Return the system prompt of a request, which may be empty. PREPARE calls this once per request.

        If the request names a template, `session` contains the conversation's stored values as JSON documents by key.

        Raises InvalidRequest (CONFIG_INVALID) if a template or a variable is unknown.
        """


@dataclass(frozen=True, slots=True)
class ConfiguredTemplate:
    """A prompt template: its name, its variables, and the keys of the conversation values that it reads."""

    name: str
    variables: tuple[str, ...]
    session_keys: tuple[str, ...]


class TemplateCatalog(Protocol):
    """The prompt templates of the deployment."""

    def templates(self) -> tuple[ConfiguredTemplate, ...]:
        """Return the templates by name."""

    def render(self, template: TemplateCall, session: Mapping[str, str]) -> str:
        """Return the text of a template. `session` contains the stored values of a conversation.

        Raises InvalidRequest (CONFIG_INVALID) if the template is unknown, or if a variable is missing or unknown.
        """


class SummaryStore(Protocol):
    """Stores summaries of conversations. A conversation's summary is deleted with the conversation."""

    async def get_summary(self, key: SessionKey) -> Summary | None:
        """Return the summary of a conversation's oldest messages, or None if there is no summary."""

    async def put_summary(self, key: SessionKey, summary: Summary) -> None:
        """Replace a conversation's summary. Does nothing if the conversation is unknown."""


class ConstraintPort(Protocol):
    """The constraint service: compiles constraints for the decoder, and runs the constraint pipeline."""

    async def compile(self, output: OutputContract, sources: Sequence[str] = ()) -> CompiledConstraint:
        """Compile what the contract requires (a grammar, a schema, or citations from `sources`) for the decoder."""

    async def compile_rules(self, request: Request) -> None:
        """Check the request's rules before there is an output. Raises InvalidRequest if a rule is invalid."""

    async def enforce(
        self, text: str, request: Request, *, is_decoder_enforced: bool, sources: Sequence[str] = ()
    ) -> Enforcement:
        """Run the constraint pipeline that the request declares. Citations must quote the given sources."""


class ToolsPort(Protocol):
    """The tools service: lists and searches tools, and runs tool calls."""

    async def list_tools(self, names: Sequence[str]) -> list[OfferedTool]:
        """Return the named tools, or all tools. Raises NotFound (TOOL_NOT_FOUND) if a name is unknown."""

    async def search_tools(self, query: str, names: Sequence[str], limit: int) -> list[str]:
        """Return the names of at most `limit` of the named tools that match a query, best first."""

    async def execute(self, call: ToolCall, report: Report) -> ToolCallRecord:
        """Run a call and report its progress. If the tool itself fails, the record contains the failure.

        The tool receives the id of the current effect.
        """

    async def find_outcome(self, tool: str, effect_id: str) -> LostCall:
        """Ask a tool for the outcome of a lost call."""


class ContextPort(Protocol):
    """The context and rerank services: retrieve and rerank chunks, and build context messages."""

    async def build(
        self, query: str, policy: ContextPolicy, model: str, more_queries: Sequence[str] = ()
    ) -> BuiltContext:
        """Retrieve chunks by a query and additional queries, and build the context message.

        The chunks are reranked by the query if the policy requires reranking.
        """

    async def retrieve(self, query: str, policy: ContextPolicy) -> tuple[Chunk, ...]:
        """Return chunks, best first. Raises NotFound if the collection is unknown."""

    async def rerank(self, query: str, chunks: Sequence[Chunk], ranking: Ranking) -> tuple[Chunk, ...]:
        """Return the chunks in their new order, without the chunks below min_score."""
