"""What the app needs from other services and from storage. All raise PaganticError."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from pagantic_common.domain.chunks import Chunk
from pagantic_common.domain.errors import Failure
from pagantic_common.domain.messages import Message, ToolCall, ToolDefinition
from pagantic_common.domain.usage import TokenUsage
from pagantic_common.domain.validation import Enforcement
from services.orchestrator.core.contract import OutputContract
from services.orchestrator.core.events import Event
from services.orchestrator.core.lifecycle import State
from services.orchestrator.core.request import ContextPolicy, Hints, Mode, Request
from services.orchestrator.core.response import CandidateOutput, InferenceOutput, Response, ToolCallRecord
from services.orchestrator.core.run import Infer, Sample


@dataclass(frozen=True, slots=True)
class CompiledConstraint:
    """What the decoder takes; `is_fully_enforced` when nothing of the source is left to check."""

    engine_text: str
    is_fully_enforced: bool


@dataclass(frozen=True, slots=True)
class BuiltContext:
    """The context message of a turn; None when nothing was found."""

    message: Message | None
    chunk_count: int = 0
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


class InferencePort(Protocol):
    """The inference service."""

    def infer(self, command: Infer, hints: Hints) -> AsyncGenerator[str | InferenceOutput, None]:
        """Stream the answer's text, then the whole output. Closing the generator stops decoding."""

    def sample(self, command: Sample, hints: Hints) -> AsyncGenerator[CandidateOutput | TokenUsage, None]:
        """Stream each candidate as it ends, then the usage of all. Closing the generator stops decoding."""


class ConstraintPort(Protocol):
    """The constraint service."""

    async def compile(self, output: OutputContract) -> CompiledConstraint:
        """Compile the contract's grammar or schema for the decoder."""

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


@dataclass(frozen=True, slots=True)
class ExecutionRecord:
    """An execution as the journal knows it; `response` is None until it has ended."""

    request_id: str
    session_id: str
    trace_id: str
    mode: Mode
    started_at: datetime
    state: State
    entered_at: datetime
    attempt: int
    fingerprint: str
    total_steps: int = 0
    last_step: str = ""
    last_failure: Failure | None = None
    response: Response | None = None
    is_interrupted: bool = False


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A stored conversation; `messages` is empty in lists."""

    session_id: str
    messages: tuple[Message, ...]
    message_count: int
    created_at: datetime
    updated_at: datetime


class Journal(Protocol):
    """Where executions, their events and conversations are kept. What a method returned from is durable."""

    async def admit(self, record: ExecutionRecord) -> ExecutionRecord | None:
        """Store a new execution and return None, or return the one that has the id already."""

    async def append(self, event: Event, record: ExecutionRecord) -> None:
        """Store an event and where the execution stands after it."""

    async def finish(self, events: Sequence[Event], record: ExecutionRecord, turn: Sequence[Message]) -> None:
        """Store the last events, the response, and what the conversation gains, all or nothing."""

    async def get(self, request_id: str) -> ExecutionRecord:
        """Return an execution. Raises NotFound."""

    async def list_executions(
        self, *, limit: int, before: str, session_id: str, state: State | None
    ) -> list[ExecutionRecord]:
        """Return executions, newest first, without responses; `before` is the page token, empty for the first page."""

    async def timeline(self, request_id: str) -> list[Event]:
        """Return the stored events in sequence. Raises NotFound."""

    async def history(self, session_id: str) -> tuple[Message, ...]:
        """Return a conversation's messages, oldest first; empty when there is none."""

    async def get_session(self, session_id: str) -> SessionRecord:
        """Return a conversation. Raises NotFound."""

    async def list_sessions(self, *, limit: int, after: int) -> list[SessionRecord]:
        """Return conversations without messages, last used first, skipping the first `after`."""

    async def delete_session(self, session_id: str) -> None:
        """Remove a conversation. Raises NotFound."""
