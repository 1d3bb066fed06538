"""Lets a run remember as much of its conversation as the memory policy and the model's context window allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pagantic_common.domain.errors import ErrorCategory, PaganticError
from pagantic_common.domain.messages import Message, ToolChoice, ToolDefinition
from pagantic_common.telemetry.logging import get_logger
from services.orchestrator.app.effects.inferring import ask_model
from services.orchestrator.app.effects.scope import RunScope
from services.orchestrator.app.failures import failure_from
from services.orchestrator.core.conversation import memory
from services.orchestrator.core.conversation.memory import Eviction, Summary
from services.orchestrator.core.conversation.prompt import assemble_messages
from services.orchestrator.core.execution.commands import Infer
from services.orchestrator.core.execution.events import InferencePurpose
from services.orchestrator.core.model.prepared import Prepared
from services.orchestrator.core.model.request import Request, side_hints
from services.orchestrator.core.model.response_warning import ResponseWarning
from services.orchestrator.ports.services import TokenCount

log = get_logger(__name__)

MAX_COUNTED_BYTES = 1024 * 1024  # of a conversation, the newest; it is sent twice, and a message has 4 MiB
MAX_RECALLED_BYTES = 2 * MAX_COUNTED_BYTES  # a turn reads the newest part of a conversation, no more
BYTES_PER_TOKEN = 16  # hardly any text has longer tokens, so what has more bytes than this cannot be kept
UNKNOWN_WINDOW = 2048
SUMMARY_MESSAGE_TOKENS = 32  # its heading and what the template puts around it


@dataclass(frozen=True, slots=True)
class _Past:
    """A stored conversation, where its last cut was, 0 for none, and what stands for its oldest messages."""

    history: tuple[Message, ...]
    last_start: int
    summary: Summary | None


class Memory:
    """The memory of one run."""

    def __init__(self, scope: RunScope) -> None:
        self._scope = scope
        self._inference = scope.services.inference
        self._summaries = scope.services.summaries
        self._policy = scope.services.memory

    async def recall(
        self, request: Request, prepared: Prepared, history: tuple[Message, ...], first: int = 0
    ) -> Prepared:
        """Return what was prepared with as much of the history as the model is to see.

        `first` is the position of the history's beginning in the stored conversation.
        """
        if not history or self._policy.eviction is Eviction.NONE:
            return replace(prepared, history=history, history_start=first, history_end=first + len(history))
        cuts = memory.cuts_of(history, request.messages)
        if first and len(cuts) > 1:  # the part that was read may begin in the middle of a turn
            history, first = history[cuts[1] :], first + cuts[1]
            cuts = memory.cuts_of(history, request.messages)
        is_summarized = self._policy.eviction is Eviction.SUMMARIZE
        last = await self._summaries.get_summary(request.session_id)
        before = max(0, last.message_count - first) if last is not None else 0
        summary = last if is_summarized and last is not None and last.text else None
        covered = before if summary is not None else 0
        cuts = memory.cuts_from(cuts, memory.cut_at(cuts, covered))
        if self._policy.max_messages:
            cuts = memory.cuts_from(cuts, memory.cut_for(cuts, [1] * len(history), self._policy.max_messages, before))
        start = await self._start(request, prepared, _Past(history, before, summary), cuts)
        if is_summarized and start > covered:
            newer, prepared = await self._summarize(request, prepared, history[covered:start], summary)
            if newer:
                summary = Summary(newer, first + start)
                await self._summaries.put_summary(request.session_id, summary)
        elif start not in (0, before):
            await self._summaries.put_summary(request.session_id, Summary("", first + start))
        prepared = replace(
            prepared,
            history=memory.remembered(summary, history[start:]),
            history_start=first + start,
            history_end=first + len(history),
        )
        if not prepared.history_start:
            return prepared
        return _with_warning(prepared, is_summarized=summary is not None)

    async def _start(
        self,
        request: Request,
        prepared: Prepared,
        past: _Past,
        cuts: Sequence[int],
    ) -> int:
        """Return where the history begins by tokens; they are counted only where its bytes do not settle it."""
        history, summary = past.history, past.summary
        most, model = self._policy.max_tokens, request.hints.model
        sizes = [memory.byte_count(message) for message in history]
        window = self._inference.context_window(model)
        messages = self._prompt(request, prepared, history[cuts[0] :], summary)
        if window and (not most or sum(sizes[cuts[0] :]) <= most):
            used = memory.most_tokens(messages, prepared.tools) + self._reserved(request, cuts[0], past, window)
            if used <= window:
                return cuts[0]
        nearest = min([MAX_COUNTED_BYTES, *(BYTES_PER_TOKEN * limit for limit in (most, window) if limit)])
        cuts = memory.cuts_from(cuts, memory.cut_by_size(cuts, sizes, nearest))
        start = cuts[0]
        messages = self._prompt(request, prepared, history[start:], summary)
        count = await self._count(messages, prepared.tools, history[start:], model)
        sizes[start:] = count.texts
        window, said = count.context_window, sum(count.texts)
        others = count.chat - said  # all else in the prompt, and what the template puts around the messages
        limits = [most] if most else []
        if window:
            limits.append(window - others - self._reserved(request, start, past, window))
        if not limits or said <= min(limits):
            return start
        if window:
            limits.append(window - others - self._reserved(request, len(history), past, window))
        return memory.cut_for(cuts, sizes, max(0, min(limits)), past.last_start)

    def _reserved(self, request: Request, start: int, past: _Past, window: int) -> int:
        """Return the tokens kept free for the answer, and for the summary that a history from `start` needs."""
        free = memory.output_tokens(request.hints.max_tokens, window)
        covered = past.last_start if past.summary is not None else 0
        is_summarized = self._policy.eviction is Eviction.SUMMARIZE and start > covered
        return free + memory.summary_tokens(window) + SUMMARY_MESSAGE_TOKENS if is_summarized else free

    async def _summarize(
        self, request: Request, prepared: Prepared, gone: Sequence[Message], summary: Summary | None
    ) -> tuple[str, Prepared]:
        """Have the model sum up what goes, and count what that costs; the text is empty when it could not."""
        model = request.hints.model
        window = self._inference.context_window(model)
        most = memory.summary_tokens(window)
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
            seed=request.hints.seed,
            is_streamed=False,
        )
        reason = "the model said nothing"
        text = ""
        try:
            hints = replace(side_hints(request.hints), max_tokens=most, temperature=0.0)
            output = await ask_model(request, command, hints, self._scope, InferencePurpose.SUMMARY)
            text = output.content.strip()
            prepared = replace(prepared, usage=prepared.usage + output.usage)
        except PaganticError as error:
            _raise_cancellation(error)
            reason = str(error)
        if not text:
            log.warning("what left a conversation's memory was not summarized", reason=reason)
        return text, prepared

    def _prompt(
        self, request: Request, prepared: Prepared, kept: Sequence[Message], summary: Summary | None
    ) -> tuple[Message, ...]:
        return assemble_messages(request, replace(prepared, history=memory.remembered(summary, kept)), ())

    async def _count(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], kept: Sequence[Message], model: str
    ) -> TokenCount:
        """Count a prompt and each message kept; where nobody can, their bytes stand for them."""
        try:
            texts = [memory.counted_text(message) for message in kept]
            return await self._inference.count_tokens(messages, tools, texts, model)
        except PaganticError as error:
            _raise_cancellation(error)
            log.warning("a conversation's tokens were not counted: its bytes are", reason=str(error))
            sizes = tuple(memory.byte_count(message) for message in kept)
            return TokenCount(memory.most_tokens(messages, tools), sizes, self._inference.context_window(model))


def _with_warning(prepared: Prepared, *, is_summarized: bool) -> Prepared:
    instead = (
        " and were replaced by a summary" if is_summarized else ": start a new session, or raise the context window"
    )
    gone = f"the oldest {prepared.history_start} of {prepared.history_end} stored messages"
    warning = ResponseWarning("history_shortened", f"{gone} did not fit the context window{instead}")
    return replace(prepared, warnings=(*prepared.warnings, warning))


def _raise_cancellation(error: PaganticError) -> None:
    if failure_from(error).category is ErrorCategory.CANCELLATION:
        raise error
