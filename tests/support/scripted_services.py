"""The other services as the orchestrator's ports see them, saying what a test tells them."""

import asyncio
import math
import re

from pagantic_common.domain.chunks import Chunk, lay_out
from pagantic_common.domain.errors import ErrorCode, Internal, NotFound, failure_of
from pagantic_common.domain.messages import Ending, LostCall, Message, ModelInfo, Role, ToolDefinition, ToolSafety
from pagantic_common.domain.usage import TokenUsage
from pagantic_common.domain.validation import Enforcement, Guarantee, Stage, StageOutcome, StageReport
from pagantic_common.telemetry.scope import current_correlation, current_effect_id
from services.orchestrator.adapters.operator_files import PromptFolder
from services.orchestrator.app.services import Services
from services.orchestrator.core.conversation.memory import MemoryPolicy
from services.orchestrator.core.model.response import (
    CandidateOutput,
    FinishReason,
    InferenceDelta,
    InferenceOutput,
    ToolCallRecord,
)
from services.orchestrator.core.tools.policy import parse_policy
from services.orchestrator.ports.services import (
    BuiltContext,
    CompiledConstraint,
    OfferedTool,
    PairScores,
    QuestionScores,
    Scores,
    TokenCount,
    Vectors,
)

USAGE = TokenUsage(prompt_tokens=10, output_tokens=3, context_tokens=13, context_window=100, decode_seconds=0.5)


def answer(content="hello", calls=(), reason=None):
    reason = reason or (FinishReason.TOOL if calls else FinishReason.STOP)
    return InferenceOutput(content, reason, tool_calls=tuple(calls), constraint_satisfied=not calls, usage=USAGE)


class ScriptedInference:
    """Gives its outputs in turn; an exception is raised, and `None` waits until the call is cancelled."""

    def __init__(self, *outputs):
        self.outputs = list(outputs) or [answer()]
        self.commands = []
        self.waiting = asyncio.Event()
        self.stopped = asyncio.Event()
        self.window = 8192
        self.logprobs = (-2.0, -1.0)
        self.label_logprobs = None
        self.counted = []
        self.more_models = ()
        self.cross_encoders = (ModelInfo("pairs", 512, ("score_pairs",)),)
        self.embedded = []
        self.scored_pairs = []
        self.hinted = []

    async def count_tokens(self, messages, tools, texts, model):
        """Count words, and one token around each message; `window` may be an exception."""
        self.counted.append((messages, texts))
        if isinstance(self.window, Exception):
            raise self.window
        chat = sum(len(message.content.split()) + 1 for message in messages)
        return TokenCount(chat, tuple(len(text.split()) for text in texts), self.window)

    async def list_models(self):
        return (
            ModelInfo("scripted", self.window, ("chat", "tools")),
            ModelInfo("embedder", 512, ("embed",)),
            *self.cross_encoders,
            *self.more_models,
        )

    async def embed(self, texts, model):
        """Give the vector of each text by its length, in three dimensions."""
        self.embedded.append((tuple(texts), model))
        vectors = []
        for text in texts:
            angle = float(len(text))
            vectors.append((0.8 * math.cos(angle), 0.8 * math.sin(angle), 0.6))
        return Vectors(tuple(vectors), TokenUsage(prompt_tokens=sum(len(text.split()) + 2 for text in texts)))

    async def score_pairs(self, query, texts, model):
        """Give each text one for each word of the query that it has, less one."""
        self.scored_pairs.append((query, tuple(texts), model))
        scores = [float(sum(word in text for word in query.split()) - 1) for text in texts]
        return PairScores(tuple(scores), TokenUsage(prompt_tokens=10 * len(texts)))

    def context_window(self, model):
        return 0 if isinstance(self.window, Exception) else self.window

    async def infer(self, command, hints):
        self.commands.append(command)
        self.hinted.append(hints)
        output = self.outputs.pop(0) if len(self.outputs) > 1 else self.outputs[0]
        if isinstance(output, Exception):
            raise output
        if output is None:
            yield InferenceDelta("partial", usage=USAGE)
            self.waiting.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.stopped.set()
        if output.reasoning:
            yield InferenceDelta(reasoning=output.reasoning)
        for word in re.findall(r"\S+\s*|\s+", output.content):
            yield InferenceDelta(word)
        yield output

    async def score(self, command, hints, continuations):
        """Find the continuations of these log-probabilities."""
        self.scored, self.scored_hints = (command, continuations), hints
        if isinstance(self.logprobs, Exception):
            raise self.logprobs
        return Scores(self.logprobs, TokenUsage(prompt_tokens=10))

    async def decide(self, command, hints):
        """Give each label of a question half of the probability of the one before, or the scripted `label_logprobs`."""
        self.commands.append(command)
        self.hinted.append(hints)
        if isinstance(self.label_logprobs, Exception):
            raise self.label_logprobs
        found = self.label_logprobs or [
            tuple(-0.7 * (place + 1) for place in range(len(question.labels))) for question in command.questions
        ]
        return QuestionScores(tuple(found), TokenUsage(prompt_tokens=10, cached_prompt_tokens=4), "scripted")

    async def sample(self, command, _hints):
        """Give the outputs as candidates in turn; an exception is raised; the usage of all comes last."""
        self.commands.append(command)
        self.ended = 0
        for index, output in enumerate(self.outputs[: command.voting.n]):
            if isinstance(output, Exception):
                raise output
            self.ended += 1
            yield CandidateOutput(index, output)
        yield TokenUsage(prompt_tokens=10, output_tokens=3 * self.ended, decode_seconds=0.5)


class BreakingInference(ScriptedInference):
    """Streams its text, and breaks before the end of its answer."""

    async def infer(self, command, hints):
        async for part in super().infer(command, hints):
            if isinstance(part, InferenceOutput):
                raise Internal("it broke", code=ErrorCode.INFERENCE_ENGINE_ERROR)
            yield part


class ScriptedConstraint:
    """Finds an output valid unless it is among `invalid`, and repairs what is in `repaired` to its value there."""

    def __init__(self, *invalid, repaired=None):
        self.invalid = set(invalid)
        self.repaired = repaired or {}
        self.failure = None
        self.warnings = ()
        self.unsupported = ()

    async def compile(self, _output, sources=()):
        self.compiled_sources = tuple(sources)
        if self.failure is not None:
            raise self.failure
        return CompiledConstraint("engine text", not self.unsupported, self.unsupported)

    async def compile_rules(self, _request):
        if self.failure is not None:
            raise self.failure

    async def enforce(self, text, _request, *, is_decoder_enforced, sources=()):
        valid = text not in self.invalid
        stage = StageReport(Stage.SCHEMA_VALIDATION, StageOutcome.PASSED if valid else StageOutcome.FAILED)
        guarantee = Guarantee.ENFORCED if is_decoder_enforced else Guarantee.VALIDATED
        failure = None if valid else failure_of(ErrorCode.CONSTRAINT_JSON_INVALID, "is no JSON")
        guarantee = guarantee if valid else Guarantee.PARTIAL
        if text in self.repaired:
            stage = StageReport(Stage.JSON_REPAIR, StageOutcome.REPAIRED)
            text, guarantee = self.repaired[text], Guarantee.REPAIRED
        return Enforcement(valid, text, text, (stage,), guarantee, failure, warnings=self.warnings)


class ScriptedTools:
    """Has one tool, `clock` unless `definition` is changed.

    With `is_stuck` its calls never end; each of `ends` is raised by one call.
    """

    def __init__(self, *, is_idempotent=False, is_stuck=False, safety=ToolSafety.NONE, result="noon"):
        schema = '{"type":"object"}'
        self.definition = ToolDefinition("clock", "Tells the time.", schema, safety=safety, idempotent=is_idempotent)
        self.result = result
        self.is_stuck = is_stuck
        self.called = asyncio.Event()
        self.failure = None
        self.ends = []
        self.calls = []
        self.correlations = []
        self.effect_ids = []
        self.outcome = LostCall(Ending.UNKNOWN)
        self.outcomes_asked = []
        self.reports = []

    async def list_tools(self, names):
        self.correlations.append(current_correlation())
        if self.failure is not None:
            raise self.failure
        if unknown := set(names) - {self.definition.name}:
            raise NotFound(f"no tool is named {unknown}", code=ErrorCode.TOOL_NOT_FOUND)
        return [OfferedTool(self.definition, is_available=True)]

    async def search_tools(self, query, names, limit):
        self.searched = (query, names, limit)
        return [name for name in names if name in query]

    async def execute(self, call, report):
        self.calls.append(call)
        self.effect_ids.append(current_effect_id())
        self.called.set()
        for progress in self.reports:
            await report(progress)
        if self.is_stuck:
            await asyncio.Event().wait()
        if self.ends:
            raise self.ends.pop(0)
        return ToolCallRecord(call.id, call.name, call.arguments_json, self.result, False, None, 0.01)

    async def find_outcome(self, tool, effect_id):
        self.outcomes_asked.append((tool, effect_id))
        return self.outcome


class ScriptedContext:
    """Lays out the chunks that it is given, or fails."""

    def __init__(self, *chunks):
        self.chunks = chunks
        self.failure = None
        self.unembedded_count = 0

    async def build(self, query, policy, _model, more_queries=()):
        self.searched = (query, *more_queries)
        if self.failure is not None:
            raise self.failure
        role = Role.SYSTEM if policy.is_system else Role.USER
        text = lay_out(self.chunks, is_fenced=not policy.is_system)
        message = Message(role, text) if self.chunks else None
        return BuiltContext(message, self.chunks, unembedded_count=self.unembedded_count)

    async def retrieve(self, query, policy):
        if self.failure is not None:
            raise self.failure
        self.retrieved = (query, policy)
        return tuple(Chunk(str(n), f"chunk {n} of {query}", policy.collection, 1.0 / n, "bm25") for n in (1, 2, 3))

    async def rerank(self, query, chunks, ranking):
        self.reranked = (query, ranking)
        return tuple(reversed(chunks))[: ranking.top_k or None]


class ScriptedSummaries:
    """Keeps summaries in a dict."""

    def __init__(self):
        self.kept = {}

    async def get_summary(self, session_id):
        return self.kept.get(session_id)

    async def put_summary(self, session_id, summary):
        self.kept[session_id] = summary


def scripted_services(
    inference=None, constraint=None, tools=None, context=None, *, prompts=None, summaries=None, memory=None, policy=""
):
    return Services(
        inference=inference or ScriptedInference(),
        constraint=constraint or ScriptedConstraint(),
        tools=tools or ScriptedTools(),
        context=context or ScriptedContext(),
        prompts=prompts or PromptFolder(None),
        summaries=summaries or ScriptedSummaries(),
        waits=None,  # a journal has them
        memory=memory or MemoryPolicy(),
        tool_policy=parse_policy(policy),
    )
