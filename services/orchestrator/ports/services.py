"""What the app needs from other services. All raise PaganticError."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pagantic_common.domain.chunks import Chunk
from pagantic_common.domain.messages import Message, ToolCall, ToolDefinition
from pagantic_common.domain.usage import TokenUsage
from pagantic_common.domain.validation import Enforcement
from services.orchestrator.core.conversation.memory import Summary
from services.orchestrator.core.execution.commands import Infer, Sample
from services.orchestrator.core.model.contract import OutputContract
from services.orchestrator.core.model.request import Hints, Request
from services.orchestrator.core.model.response import CandidateOutput, InferenceDelta, InferenceOutput, ToolCallRecord
from services.orchestrator.core.model.retrieval import ContextPolicy


@dataclass(frozen=True, slots=True)
class CompiledConstraint:
    """What the decoder takes; `is_fully_enforced` when nothing of the source is left to check.

    `unsupported` are the schema's keywords that the decoder does not enforce, each with its place where that is known.
    """

    engine_text: str
    is_fully_enforced: bool
    unsupported: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BuiltContext:
    """The context message of a turn, None when nothing was found, and the chunks in it."""

    message: Message | None
    chunks: tuple[Chunk, ...] = ()
    token_count: int = 0


@dataclass(frozen=True, slots=True)
class Ranking:
    """How to rerank; an empty scorer is the default one, top_k 0 is all."""

    scorer: str = ""
    min_score: float | None = None
    top_k: int = 0


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A registered tool and whether it can be called now."""

    definition: ToolDefinition
    is_available: bool


@dataclass(frozen=True, slots=True)
class TokenCount:
    """Tokens of a prompt as the model sees it, of each text, and what fits; a window of 0 is not known."""

    chat: int
    texts: tuple[int, ...]
    context_window: int


# What a plan's step of a registered kind does: the text of what it works on, and its parameters -> text. It may run
# again after a failure or an interruption, so doing it twice must do no harm.
CustomStep = Callable[[str, Mapping[str, Any]], Awaitable[str]]


class InferencePort(Protocol):
    """The inference service."""

    async def count_tokens(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], texts: Sequence[str], model: str
    ) -> TokenCount:
        """Count the tokens of a conversation, 0 for none, and of each text."""

    def context_window(self, model: str) -> int:
        """Return the context window that the model had when it was last heard of; 0 when it was not."""

    def infer(self, command: Infer, hints: Hints) -> AsyncGenerator[InferenceDelta | InferenceOutput, None]:
        """Stream what the model says, then the whole output. The first delta comes when the prompt is processed.

        Closing the generator stops decoding.
        """

    def sample(self, command: Sample, hints: Hints) -> AsyncGenerator[CandidateOutput | TokenUsage, None]:
        """Give the prompt's usage, each candidate as it ends with its own, then the usage of all.

        Closing the generator stops decoding.
        """


class PromptProvider(Protocol):
    """Makes system prompts. A deployment that assembles prompts its own way has one of its own."""

    async def system_prompt(self, request: Request, session: Mapping[str, str]) -> str:
        """Return the system prompt of a request, empty for none; asked once per request, in PREPARE.

        `session` are the values kept for its conversation, JSON documents by their keys, where it names a template.

        Raises InvalidRequest (CONFIG_INVALID) for a template or variables that it does not have.
        """


class SummaryStore(Protocol):
    """Where summaries of stored conversations are kept; they go with their conversation."""

    async def get_summary(self, session_id: str) -> Summary | None:
        """Return what stands for a conversation's oldest messages; None when nothing does."""

    async def put_summary(self, session_id: str, summary: Summary) -> None:
        """Keep a summary instead of the one before; of a conversation that is not there, none is kept."""


class ConstraintPort(Protocol):
    """The constraint service."""

    async def compile(self, output: OutputContract) -> CompiledConstraint:
        """Compile the contract's grammar or schema for the decoder."""

    async def compile_rules(self, request: Request) -> None:
        """Check the request's rules before there is an output; raises InvalidRequest for one that is wrong."""

    async def enforce(self, text: str, request: Request, *, is_decoder_enforced: bool) -> Enforcement:
        """Run the pipeline that the request declares."""


class ToolsPort(Protocol):
    """The tools service."""

    async def list_tools(self, names: Sequence[str]) -> list[OfferedTool]:
        """List the named tools, or all. Raises NotFound (TOOL_NOT_FOUND) for an unknown name."""

    async def execute(self, call: ToolCall) -> ToolCallRecord:
        """Run a call; the tool's own failure is in the record."""


class ContextPort(Protocol):
    """The context and rerank services."""

    async def build(self, query: str, policy: ContextPolicy, model: str) -> BuiltContext:
        """Retrieve, rerank where the policy says so, and lay out."""

    async def retrieve(self, query: str, policy: ContextPolicy) -> tuple[Chunk, ...]:
        """Return chunks, best first. Raises NotFound for an unknown collection."""

    async def rerank(self, query: str, chunks: Sequence[Chunk], ranking: Ranking) -> tuple[Chunk, ...]:
        """Return chunks anew ordered, those below min_score dropped."""
