"""The PREPARE state, which resolves the inputs of a run before its first inference.

The history is the part of a conversation that fits the memory policy and the model's context window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pagantic_common.domain.errors import ErrorCategory, ErrorCode, PaganticError
from pagantic_common.domain.messages import Message, ToolChoice, ToolDefinition
from pagantic_common.telemetry.logging import get_logger
from services.orchestrator.app.effects.inference.inferring import infer
from services.orchestrator.app.effects.retrieving import retrieve
from services.orchestrator.app.effects.scope import RunScope
from services.orchestrator.app.effects.tools.offering import offered_tools, plan_tools
from services.orchestrator.app.failures import failure_from
from services.orchestrator.app.services import Compile, CompileRules, CountTokens
from services.orchestrator.core.conversation import memory
from services.orchestrator.core.conversation.memory import Eviction, Summary
from services.orchestrator.core.conversation.prompt import (
    MAX_AUTO_SCHEMA_BYTES,
    Prepared,
    assemble_messages,
    context_message,
    is_schema_left_out,
)
from services.orchestrator.core.execution.events import InferencePurpose
from services.orchestrator.core.model.plan import tools_of
from services.orchestrator.core.model.request import Request, side_hints
from services.orchestrator.core.model.request_check import check_configuration, check_results
from services.orchestrator.core.model.response_warning import ResponseWarning
from services.orchestrator.core.turn.answering import Infer
from services.orchestrator.core.turn.preparing import Prepare
from services.orchestrator.core.turn.run import Run
from services.orchestrator.ports.services import CompiledConstraint, TokenCount

MAX_NAMED_KEYWORDS = 8  # maximum number of keywords that a warning names


async def prepare(run: Run, _command: Prepare, scope: RunScope) -> Prepared:
    """Resolve the system prompt, history, constraint, tools and context. Raises PaganticError if this fails."""
    request = run.request
    check_configuration(request)
    if request.rules:
        await scope.services.do(CompileRules(request))
    if scope.taken is not None and (recorded := scope.taken.prepared(scope.path)) is not None:
        if not scope.taken.has_other_prompt:
            return recorded
        return replace(recorded, system_prompt=await _system_prompt(request, scope))
    prepared = Prepared(system_prompt=await _system_prompt(request, scope))
    first, history = await _history(request, scope)
    if request.is_turn:
        check_results(history, request.messages)
    if run.plan is not None:  # Only a run in mode PLAN has a plan.
        prepared = replace(prepared, tools=await plan_tools(request, tools_of(run.plan), scope))
    else:
        prepared = await _prepare_turn(run, prepared, history, scope)
    return await Memory(run, scope).recall(prepared, history, first)


async def _prepare_turn(run: Run, prepared: Prepared, history: tuple[Message, ...], scope: RunScope) -> Prepared:
    request = run.request
    tools, away = await offered_tools(request, history, scope)
    retrieved = await retrieve(run, history, scope)
    if request.output.citations is not None:
        prepared = replace(prepared, cited_chunks=retrieved.chunks)
    compiled = await _compiled(request, prepared.cited_sources, scope)
    return replace(
        prepared,
        context_message=context_message(request, retrieved.message, tools),
        retrieval_confidence=retrieved.confidence,
        tools=tools,
        engine_text=compiled.engine_text,
        is_fully_enforced=compiled.is_fully_enforced,
        usage=prepared.usage + scope.inference.take_lost(),
        warnings=(*_schema_warnings(request), *_decoder_warnings(compiled), *away, *retrieved.warnings),
    )


async def _compiled(request: Request, sources: Sequence[str], scope: RunScope) -> CompiledConstraint:
    if not request.output.decoder_constraint or request.output.is_empty:
        return CompiledConstraint("", is_fully_enforced=False)
    return await scope.services.do(Compile(request.output, sources))


async def _history(request: Request, scope: RunScope) -> tuple[int, tuple[Message, ...]]:
    """Return the visible part of the stored conversation, and its start position."""
    if not request.session_id:
        return 0, ()
    if scope.services.memory.eviction is Eviction.NONE:
        return await scope.conversations.history(request.session_key)
    return await scope.conversations.history(request.session_key, MAX_RECALLED_BYTES, limit=MAX_RECALLED_MESSAGES)


async def _system_prompt(request: Request, scope: RunScope) -> str:
    prompt = request.prompt
    if prompt.is_assembled:
        return prompt.text
    if request.text_prompt:
        return ""
    session: Mapping[str, str] = {}
    if prompt.template is not None and request.session_id:
        session = await scope.conversations.session_state(request.session_key)
    return await scope.services.prompts.system_prompt(request, session)


def _schema_warnings(request: Request) -> tuple[ResponseWarning, ...]:
    if request.text_prompt or not request.output.schema_json or not is_schema_left_out(request.output):
        return ()
    text = (
        f"the schema is larger than {MAX_AUTO_SCHEMA_BYTES} bytes and was left out of the prompt: set "
        "output.schema_in_prompt to ON to include it"
    )
    return (ResponseWarning("schema_not_in_prompt", text),)


def _decoder_warnings(compiled: CompiledConstraint) -> tuple[ResponseWarning, ...]:
    """Return a warning that names the schema keywords that are checked only after decoding."""
    if not compiled.unsupported:
        return ()
    named, more = compiled.unsupported[:MAX_NAMED_KEYWORDS], len(compiled.unsupported) - MAX_NAMED_KEYWORDS
    names = "; ".join(named) + (f"; and {more} more" if more > 0 else "")
    text = f"the decoder does not enforce these parts of the schema, which are checked after decoding: {names}"
    return (ResponseWarning("schema_not_enforced", text),)


log = get_logger(__name__)

MAX_COUNTED_BYTES = 1024 * 1024  # maximum size of counted messages, which are sent twice; a message may have 4 MiB
MAX_RECALLED_BYTES = 2 * MAX_COUNTED_BYTES  # A turn reads only the newest part of a conversation.
MAX_RECALLED_MESSAGES = 8192  # Other services limit the messages of a request.
BYTES_PER_TOKEN = 16  # upper bound for almost any text; longer text cannot fit the limit
UNKNOWN_WINDOW = 2048
# Maximum number of tokens for a summary's heading, its fence and the template around it.
SUMMARY_MESSAGE_TOKENS = 64


@dataclass(frozen=True, slots=True)
class _Past:
    """A stored conversation.

    Attributes:
        history: The newest messages, from position `first` on.
        cuts: The indexes in `history` at which the visible part may start.
        last_start: The start of the previous history; 0 is the start of the conversation.
        summary: The summary that replaces the oldest messages, or None.
    """

    history: tuple[Message, ...]
    first: int
    cuts: tuple[int, ...]
    last_start: int
    summary: Summary | None

    @property
    def covered(self) -> int:
        """Number of messages that the summary replaces."""
        if self.summary is None:
            return 0
        return self.last_start

    @property
    def end(self) -> int:
        """The position after the last message."""
        return self.first + len(self.history)


class Memory:
    """Selects the part of a conversation that the model sees, and stores a summary of the evicted messages."""

    def __init__(self, run: Run, scope: RunScope) -> None:
        self._run = run
        self._request = run.request
        self._scope = scope
        self._services = scope.services
        self._summaries = scope.services.summaries
        self._policy = scope.services.memory
        self._summarizes = self._policy.eviction is Eviction.SUMMARIZE

    async def recall(self, prepared: Prepared, history: tuple[Message, ...], first: int = 0) -> Prepared:
        """Return `prepared` with the part of the history that the model will see.

        `first` is the position of the history's start in the stored conversation.
        """
        if not history or self._policy.eviction is Eviction.NONE:
            return replace(prepared, history=history, history_start=first, history_end=first + len(history))
        past = await self._past(history, first)
        start = await self._start(prepared, past)
        prepared, summary = await self._evict(prepared, past, start)
        prepared = replace(
            prepared,
            history=memory.remembered(summary, past.history[start:]),
            history_start=past.first + start,
            history_end=past.end,
        )
        if not prepared.history_start:
            return prepared
        return _with_warning(prepared, is_summarized=summary is not None)

    async def _past(self, history: tuple[Message, ...], first: int) -> _Past:
        cuts = memory.cuts_of(history, self._request.messages)
        if first and len(cuts) > 1:  # The history may start in the middle of a turn.
            history, first = history[cuts[1] :], first + cuts[1]
            cuts = memory.cuts_of(history, self._request.messages)
        last_start, summary = 0, None
        last = await self._summaries.get_summary(self._request.session_key)
        if last is not None:
            last_start = max(0, last.message_count - first)
            if self._summarizes and last.text:
                summary = last
        past = _Past(history, first, cuts, last_start, summary)
        cuts = memory.cuts_from(cuts, memory.cut_at(cuts, past.covered))
        max_messages = self._policy.max_messages
        if max_messages:
            cuts = memory.cuts_from(cuts, memory.cut_for(cuts, [1] * len(history), max_messages, last_start))
        return replace(past, cuts=cuts)

    async def _evict(self, prepared: Prepared, past: _Past, start: int) -> tuple[Prepared, Summary | None]:
        """Store the new start of the history, with a summary of the evicted messages if the policy requires it."""
        key, position = self._request.session_key, past.first + start
        if self._summarizes and start > past.covered:
            gone = past.history[past.covered : start]
            text, prepared = await self._summarize(prepared, gone, past.summary)
            if not text:
                return prepared, past.summary
            summary = Summary(text, position)
            await self._summaries.put_summary(key, summary)
            return prepared, summary
        if start not in (0, past.last_start):
            await self._summaries.put_summary(key, Summary("", position))
        return prepared, past.summary

    async def _start(self, prepared: Prepared, past: _Past) -> int:
        """Return the start of the history. Tokens are counted only if the size in bytes is not conclusive."""
        sizes = [memory.byte_count(message) for message in past.history]
        if self._fits_by_bytes(prepared, past, sizes):
            return past.cuts[0]
        max_tokens, model = self._policy.max_tokens, self._request.hints.model
        window = self._services.context_window(model)
        nearest = min([MAX_COUNTED_BYTES, *(BYTES_PER_TOKEN * limit for limit in (max_tokens, window) if limit)])
        cuts = memory.cuts_from(past.cuts, memory.cut_by_size(past.cuts, sizes, nearest))
        start = cuts[0]
        messages = self._prompt(prepared, past.history[start:], past.summary)
        count = await self._count(messages, prepared.tools, past.history[start:], model)
        sizes[start:] = count.texts
        window, history_tokens = count.context_window, sum(count.texts)
        others = count.chat - history_tokens  # the rest of the prompt, and the template's text around the messages
        limits = [max_tokens] if max_tokens else []
        if window:
            limits.append(window - others - self._reserved(start, past, window))
        if not limits or history_tokens <= min(limits):
            return start
        if window:
            limits.append(window - others - self._reserved(len(past.history), past, window))
        return memory.cut_for(cuts, sizes, max(0, min(limits)), past.last_start)

    def _fits_by_bytes(self, prepared: Prepared, past: _Past, sizes: Sequence[int]) -> bool:
        """Return whether the whole history is certain to fit, based only on its size in bytes."""
        start, max_tokens = past.cuts[0], self._policy.max_tokens
        window = self._services.context_window(self._request.hints.model)
        if not window or (max_tokens and sum(sizes[start:]) > max_tokens):
            return False
        messages = self._prompt(prepared, past.history[start:], past.summary)
        used = memory.most_tokens(messages, prepared.tools) + self._reserved(start, past, window)
        return used <= window

    def _reserved(self, start: int, past: _Past, window: int) -> int:
        """Return the tokens to reserve for the answer, and for the summary required by a history from `start`."""
        free = memory.output_tokens(self._request.hints.max_tokens, window)
        if self._summarizes and start > past.covered:
            return free + memory.summary_tokens(window) + SUMMARY_MESSAGE_TOKENS
        return free

    async def _summarize(
        self, prepared: Prepared, gone: Sequence[Message], summary: Summary | None
    ) -> tuple[str, Prepared]:
        """Have the model summarize evicted messages, and add its usage to `prepared`. A failed summary is empty."""
        model = self._request.hints.model
        window = self._services.context_window(model)
        max_tokens = memory.summary_tokens(window)
        room = memory.summary_room(window or UNKNOWN_WINDOW)
        tokens: Sequence[int] = [memory.byte_count(message) for message in gone]
        if sum(tokens) > room:
            gone = gone[memory.cut_by_size(range(len(gone)), tokens, min(MAX_COUNTED_BYTES, BYTES_PER_TOKEN * room)) :]
            tokens = (await self._count((), (), gone, model)).texts
        command = Infer(
            messages=memory.summary_request(summary, gone, tokens, room),
            tools=(),
            tool_choice=ToolChoice(),
            engine_text="",
            seed=self._request.hints.seed,
            is_streamed=False,
        )
        reason = "the model said nothing"
        text = ""
        try:
            hints = replace(side_hints(self._request.hints), max_tokens=max_tokens, temperature=0.0)
            asking = replace(self._run, request=replace(self._request, hints=hints))
            output = (await infer(asking, command, self._scope, InferencePurpose.SUMMARY)).output
            text = output.content.strip()
            prepared = replace(prepared, usage=prepared.usage + output.usage)
        except PaganticError as error:
            _raise_cancellation(error)
            reason = str(error)
            self._scope.inference.give_up()
            prepared = replace(prepared, usage=prepared.usage + self._scope.inference.take_lost())
        if not text:
            log.warning("what left a conversation's memory was not summarized", reason=reason)
        return text, prepared

    def _prompt(self, prepared: Prepared, kept: Sequence[Message], summary: Summary | None) -> tuple[Message, ...]:
        return assemble_messages(self._request, replace(prepared, history=memory.remembered(summary, kept)), ())

    async def _count(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], kept: Sequence[Message], model: str
    ) -> TokenCount:
        """Count the tokens of a prompt and of each kept message, or estimate them from bytes if counting fails."""
        try:
            texts = [memory.counted_text(message) for message in kept]
            count = await self._services.do(CountTokens(texts, model, messages, tools))
            return replace(count, texts=memory.with_images(count.texts, kept))
        except PaganticError as error:
            _raise_cancellation(error)
            log.warning("a conversation's tokens were not counted: its bytes are", reason=str(error))
            sizes = tuple(memory.byte_count(message) for message in kept)
            return TokenCount(memory.most_tokens(messages, tools), sizes, self._services.context_window(model))


def _with_warning(prepared: Prepared, *, is_summarized: bool) -> Prepared:
    instead = ": start a new session, or raise the context window"
    if is_summarized:
        instead = " and were replaced by a summary"
    gone = f"the oldest {prepared.history_start} of {prepared.history_end} stored messages"
    warning = ResponseWarning("history_shortened", f"{gone} did not fit the context window{instead}")
    return replace(prepared, warnings=(*prepared.warnings, warning))


def _raise_cancellation(error: PaganticError) -> None:
    """Raise an error that permits no fallback: a cancellation, or a policy's denial of a model."""
    if failure_from(error).category is ErrorCategory.CANCELLATION or error.code is ErrorCode.AUTH_POLICY:
        raise error
