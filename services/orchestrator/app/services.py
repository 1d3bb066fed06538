"""The calls of other services, with the policies, budgets and measurements around them.

Theory of operation. An effect makes a call by `Services.do`. The functions in `Services.around` surround the call, the
outermost first. Each function may reject the call, change it, answer it, or pass it on. A new rule for every call is
one more function. The call itself knows the port that carries it out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from pagantic_common.domain.chunks import Chunk
from pagantic_common.domain.messages import LostCall, Message, ModelInfo, ToolCall, ToolDefinition
from pagantic_common.domain.text.calibration import LabelCalibration
from pagantic_common.domain.usage import TokenUsage
from pagantic_common.domain.validation import Enforcement
from services.orchestrator.app.waits import Waits
from services.orchestrator.core.admission.experiments import Experiments
from services.orchestrator.core.conversation.memory import MemoryPolicy
from services.orchestrator.core.model.contract import OutputContract
from services.orchestrator.core.model.request import Hints, Request
from services.orchestrator.core.model.response import CandidateOutput, InferenceDelta, InferenceOutput, ToolCallRecord
from services.orchestrator.core.model.retrieval import ContextPolicy
from services.orchestrator.core.plans.planning import Planner
from services.orchestrator.core.tools.asking import DEFINITION as ASK_USER_DEFINITION
from services.orchestrator.core.tools.asking import NAME as ASK_USER
from services.orchestrator.core.tools.policy import ToolPolicy
from services.orchestrator.core.turn.answering import Infer
from services.orchestrator.core.turn.deciding import Decide
from services.orchestrator.core.turn.voting import Sample
from services.orchestrator.ports.guards import Guards
from services.orchestrator.ports.services import (
    BuiltContext,
    CompiledConstraint,
    ConstraintPort,
    ContextPort,
    CustomStep,
    InferencePort,
    OfferedTool,
    PairScores,
    PromptProvider,
    QuestionScores,
    Ranking,
    Report,
    Scores,
    SummaryStore,
    TokenCount,
    ToolsPort,
    Vectors,
)

ResultT = TypeVar("ResultT")
PieceT = TypeVar("PieceT")
# Receives the pieces of a result as they arrive. An error of the sink ends the call; EnoughError ends a Draw.
Sink = Callable[[PieceT], Awaitable[None]]
Perform = Callable[["Call[Any]", Sink[Any]], Awaitable[Any]]
# Surrounds a call: `around(perform, call, sink)` returns the result, usually the result of `perform(call, sink)`.
Around = Callable[[Perform, "Call[Any]", Sink[Any]], Awaitable[Any]]


class EnoughError(Exception):
    """Raised by the sink of a Draw once it needs no more candidates. Candidates that still decode are stopped."""


async def _drop(_piece: object) -> None:
    """Drop a piece, because the caller needs only the result."""


class Call(ABC, Generic[ResultT]):
    """A call of another service, a frozen dataclass. All methods may raise PaganticError."""

    __slots__ = ()

    @property
    def used_model(self) -> str | None:
        """The alias of the model that the call uses: empty for the default model, None for no model."""
        return None

    @property
    def searched_collection(self) -> str | None:
        """The collection in which the call searches, or None."""
        return None

    @abstractmethod
    async def perform(self, services: Services, sink: Sink[Any]) -> ResultT:
        """Make the call at the service's port, pass on its pieces, and return its result."""


@dataclass(frozen=True, slots=True)
class Services:
    """The services and settings of a run.

    Only `do` calls the four ports, so that `around` applies to every call. `waits` begins and ends the waits of
    executions. `tool_policy` is the deployment's policy. `max_offered_tool_bytes` limits the size of the registered
    tools offered to a model, unless the request names the tools; 0 means no limit. `custom_steps` maps the names of the
    deployment's step kinds to their steps. `calibrations`, `guards` and `experiments` also belong to
    the deployment. If `guards` is None, there are no guards.
    """

    inference: InferencePort
    constraint: ConstraintPort
    tools: ToolsPort
    context: ContextPort
    prompts: PromptProvider
    summaries: SummaryStore
    waits: Waits
    planner: Planner = Planner.STATIC
    memory: MemoryPolicy = field(default_factory=MemoryPolicy)
    tool_policy: ToolPolicy = ToolPolicy()
    max_offered_tool_bytes: int = 0
    custom_steps: Mapping[str, CustomStep] = field(default_factory=dict)
    calibrations: Mapping[str, LabelCalibration] = field(default_factory=dict)
    guards: Guards | None = None
    experiments: Experiments = field(default_factory=Experiments)
    around: tuple[Around, ...] = ()
    _perform: Perform = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        perform: Perform = self._reach
        for around in reversed(self.around):
            perform = partial(around, perform)
        object.__setattr__(self, "_perform", perform)

    def do(self, call: Call[ResultT], sink: Sink[Any] = _drop) -> Awaitable[ResultT]:
        """Make a call through all surrounding functions, pass its pieces to `sink`, and return its result."""
        return self._perform(call, sink)

    def context_window(self, model: str) -> int:
        """Return the last known context window of a model, or 0 if it is unknown."""
        return self.inference.context_window(model)

    def _reach(self, call: Call[ResultT], sink: Sink[Any]) -> Awaitable[ResultT]:
        return call.perform(self, sink)


@dataclass(frozen=True, slots=True)
class _ModelCall(Call[ResultT]):
    """A call that uses the model in its hints."""

    hints: Hints

    @property
    def used_model(self) -> str:
        return self.hints.model


@dataclass(frozen=True, slots=True)
class Generate(_ModelCall[InferenceOutput]):
    """Runs an inference. The pieces are InferenceDelta; the first piece arrives once the prompt is processed."""

    command: Infer

    async def perform(self, services: Services, sink: Sink[InferenceDelta]) -> InferenceOutput:
        async with aclosing(services.inference.infer(self.command, self.hints)) as pieces:
            async for piece in pieces:
                if isinstance(piece, InferenceOutput):
                    return piece
                await sink(piece)
        raise AssertionError("an inference ends with its output")


@dataclass(frozen=True, slots=True)
class Draw(_ModelCall[None]):
    """Draws the candidates of a vote.

    The pieces are the usage of the prompt, each candidate with its usage as it ends, and the usage of all candidates.
    """

    command: Sample

    async def perform(self, services: Services, sink: Sink[CandidateOutput | TokenUsage]) -> None:
        async with aclosing(services.inference.sample(self.command, self.hints)) as items:
            try:
                async for item in items:
                    await sink(item)
            except EnoughError:
                return


@dataclass(frozen=True, slots=True)
class Score(_ModelCall[Scores]):
    """Returns the log-probability of each continuation as the start of the answer, without decoding."""

    command: Infer
    continuations: Sequence[str]

    async def perform(self, services: Services, _sink: Sink[Any]) -> Scores:
        return await services.inference.score(self.command, self.hints, self.continuations)


@dataclass(frozen=True, slots=True)
class ScoreLabels(_ModelCall[QuestionScores]):
    """Returns the log-probabilities of the labels of each question, without decoding."""

    command: Decide

    async def perform(self, services: Services, _sink: Sink[Any]) -> QuestionScores:
        return await services.inference.decide(self.command, self.hints)


@dataclass(frozen=True, slots=True)
class _TextsCall(Call[ResultT]):
    """A call that has a model read texts. An empty alias selects the first suitable model."""

    texts: Sequence[str]
    model: str

    @property
    def used_model(self) -> str:
        return self.model


@dataclass(frozen=True, slots=True)
class Embed(_TextsCall[Vectors]):
    """Returns a vector of unit length for each text."""

    async def perform(self, services: Services, _sink: Sink[Any]) -> Vectors:
        return await services.inference.embed(self.texts, self.model)


@dataclass(frozen=True, slots=True)
class ScorePairs(_TextsCall[PairScores]):
    """Returns the relevance of each text to a query."""

    query: str

    async def perform(self, services: Services, _sink: Sink[Any]) -> PairScores:
        return await services.inference.score_pairs(self.query, self.texts, self.model)


@dataclass(frozen=True, slots=True)
class CountTokens(_TextsCall[TokenCount]):
    """Returns the token counts of a conversation and of each text. An empty conversation has 0 tokens."""

    messages: Sequence[Message] = ()
    tools: Sequence[ToolDefinition] = ()

    async def perform(self, services: Services, _sink: Sink[Any]) -> TokenCount:
        return await services.inference.count_tokens(self.messages, self.tools, self.texts, self.model)


@dataclass(frozen=True, slots=True)
class ListModels(Call[Sequence[ModelInfo]]):
    """Returns the models that the caller may use, the default model first."""

    async def perform(self, services: Services, _sink: Sink[Any]) -> Sequence[ModelInfo]:
        return await services.inference.list_models()


@dataclass(frozen=True, slots=True)
class Compile(Call[CompiledConstraint]):
    """Compiles the contract's grammar, schema, or citations of the sources to a constraint for the decoder."""

    output: OutputContract
    sources: Sequence[str] = ()

    async def perform(self, services: Services, _sink: Sink[Any]) -> CompiledConstraint:
        return await services.constraint.compile(self.output, self.sources)


@dataclass(frozen=True, slots=True)
class CompileRules(Call[None]):
    """Checks a request's rules before there is an output. Raises InvalidRequest if a rule is invalid."""

    request: Request

    async def perform(self, services: Services, _sink: Sink[Any]) -> None:
        await services.constraint.compile_rules(self.request)


@dataclass(frozen=True, slots=True)
class Validate(Call[Enforcement]):
    """Runs the constraint pipeline that a request declares on a text. Citations must quote the given sources."""

    text: str
    request: Request
    is_decoder_enforced: bool = False
    sources: Sequence[str] = ()

    @property
    def used_model(self) -> str | None:
        return self.request.hints.model if self.request.semantic_intent else None

    async def perform(self, services: Services, _sink: Sink[Any]) -> Enforcement:
        return await services.constraint.enforce(
            self.text, self.request, is_decoder_enforced=self.is_decoder_enforced, sources=self.sources
        )


@dataclass(frozen=True, slots=True)
class ListTools(Call[list[OfferedTool]]):
    """Returns the named tools, or all tools that the caller may call, sorted by name.

    The tool `ask_user` is returned only by its name. Raises NotFound (TOOL_NOT_FOUND) if a name is unknown.
    """

    names: Sequence[str] = ()

    async def perform(self, services: Services, _sink: Sink[Any]) -> list[OfferedTool]:
        names = [name for name in self.names if name != ASK_USER]
        listed = list(await services.tools.list_tools(names)) if names or not self.names else []
        if len(names) < len(self.names):
            listed.append(OfferedTool(ASK_USER_DEFINITION, is_available=True))
            listed.sort(key=lambda tool: tool.definition.name)
        return listed


@dataclass(frozen=True, slots=True)
class SearchTools(Call[list[str]]):
    """Returns the names of at most `limit` of the named tools that match a query, best first."""

    query: str
    names: Sequence[str]
    limit: int

    async def perform(self, services: Services, _sink: Sink[Any]) -> list[str]:
        return await services.tools.search_tools(self.query, self.names, self.limit)


@dataclass(frozen=True, slots=True)
class CallTool(Call[ToolCallRecord]):
    """Runs a tool call. The pieces are ToolProgress. If the tool itself fails, the record contains the failure."""

    call: ToolCall

    async def perform(self, services: Services, sink: Report) -> ToolCallRecord:
        return await services.tools.execute(self.call, sink)


@dataclass(frozen=True, slots=True)
class FindOutcome(Call[LostCall]):
    """Asks a tool for the outcome of a lost call."""

    tool: str
    effect_id: str

    async def perform(self, services: Services, _sink: Sink[Any]) -> LostCall:
        return await services.tools.find_outcome(self.tool, self.effect_id)


@dataclass(frozen=True, slots=True)
class _SearchCall(Call[ResultT]):
    """A call that searches in the collection of its policy."""

    query: str
    policy: ContextPolicy

    @property
    def searched_collection(self) -> str:
        return self.policy.collection


@dataclass(frozen=True, slots=True)
class BuildContext(_SearchCall[BuiltContext]):
    """Retrieves chunks by several queries, reranks them if the policy requires it, and builds the context message."""

    model: str
    more_queries: Sequence[str] = ()

    @property
    def used_model(self) -> str:
        return self.model

    async def perform(self, services: Services, _sink: Sink[Any]) -> BuiltContext:
        return await services.context.build(self.query, self.policy, self.model, self.more_queries)


@dataclass(frozen=True, slots=True)
class Retrieve(_SearchCall[tuple[Chunk, ...]]):
    """Returns chunks, best first. Raises NotFound if the collection is unknown."""

    async def perform(self, services: Services, _sink: Sink[Any]) -> tuple[Chunk, ...]:
        return await services.context.retrieve(self.query, self.policy)


@dataclass(frozen=True, slots=True)
class Rerank(Call[tuple[Chunk, ...]]):
    """Returns chunks in the order of their relevance to a query, without the chunks below the minimum score."""

    query: str
    chunks: Sequence[Chunk]
    ranking: Ranking

    async def perform(self, services: Services, _sink: Sink[Any]) -> tuple[Chunk, ...]:
        return await services.context.rerank(self.query, self.chunks, self.ranking)
