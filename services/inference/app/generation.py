"""Takes inference requests in turn and streams what the engine's thread says."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.domain.messages import ToolChoiceMode, ToolDefinition
from pagantic_common.telemetry.scope import current_deadline
from services.inference.app.decode_job import DecodeJob, EngineThread
from services.inference.app.turns import Turns
from services.inference.core.chat import plain_messages, template_messages, template_tools
from services.inference.core.control_text import ControlTextGuard
from services.inference.core.generation import (
    DEFAULT_MAX_TOKENS,
    ChatPrompt,
    Constraint,
    ConstraintKind,
    Delta,
    Event,
    InferenceRequest,
)
from services.inference.core.tool_calls import call_schema, offered_tools
from services.inference.ports import ChatTemplate, ConstraintCompiler, TextEngine


class Generation:
    """The use-case behind Infer, and what needs the tokenizer alone."""

    def __init__(
        self,
        *,
        engine: TextEngine,
        template: ChatTemplate,
        constraints: ConstraintCompiler,
        thread: EngineThread,
        queue_capacity: int,
        max_candidates: int,
        new_seed: Callable[[], int],
    ) -> None:
        self.engine = engine
        self.turns = Turns(queue_capacity)
        self.thread = thread
        self._template = template
        self._constraints = constraints
        self._max_candidates = max_candidates
        self._new_seed = new_seed
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine")
        self._live: set[threading.Event] = set()

    async def close(self) -> None:
        """Stop what still decodes, within one step, and let the engine's thread end."""
        for cancelled in self._live:
            cancelled.set()
        await asyncio.to_thread(self._executor.shutdown)

    def check_model(self, name: str) -> None:
        """Raise InvalidRequest (CONFIG_NO_ENGINE) unless `name` is empty or this model's."""
        if name and name != self.engine.model.name:
            raise InvalidRequest(
                f"no engine serves model {name!r}: this service has {self.engine.model.name!r}",
                code=ErrorCode.CONFIG_NO_ENGINE,
            )

    def prompt_tokens(self, prompt: ChatPrompt | str) -> list[int]:
        """Return a prompt as the model would see it."""
        if isinstance(prompt, str):
            return self.engine.tokenize(prompt, add_special=True, parse_special=False)
        tools = self._rendered_tools(prompt)
        guard = ControlTextGuard(self.engine.vocabulary.control_texts)
        if self._template.knows_tools:
            messages, rendered_tools = template_messages(prompt.messages), template_tools(tools)
        else:
            messages = plain_messages(prompt.messages, tools if prompt.tool_choice.is_enforced else ())
            rendered_tools = []
        text = self._template.render(guard.hide(messages), guard.hide(rendered_tools))
        return [
            token
            for part, is_meant in guard.split(text)
            for token in self.engine.tokenize(part, add_special=False, parse_special=is_meant)
        ]

    async def infer(self, request: InferenceRequest) -> AsyncGenerator[Event, None]:
        """Stream the events of one request. Closing the generator stops decoding within one step."""
        if not 1 <= request.candidate_count <= self._max_candidates:
            raise InvalidRequest(
                f"candidate_count is {request.candidate_count}: it must be between 1 and {self._max_candidates}"
            )
        self.turns.check_capacity()
        cancelled = threading.Event()
        job = await asyncio.to_thread(self._prepare, request, cancelled)
        self._live.add(cancelled)
        try:
            async with self.turns.take(request.priority), aclosing(self._run(job, cancelled)) as events:
                async for event in events:
                    yield event
        finally:
            self._live.discard(cancelled)

    async def _run(self, job: DecodeJob, cancelled: threading.Event) -> AsyncGenerator[Event, None]:
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[Event | None] = asyncio.Queue()

        def emit(event: Event | None) -> None:
            loop.call_soon_threadsafe(events.put_nowait, event)

        def work() -> None:
            try:
                self.thread.run(job, emit)
            finally:
                emit(None)

        running = loop.run_in_executor(self._executor, work)
        try:
            async for event in _coalesced(events):
                yield event
            await running
        finally:
            cancelled.set()
            # The engine is this job's until its thread has let go of it, also while this task is being cancelled.
            while not running.done():
                try:
                    await asyncio.wait([running])
                except asyncio.CancelledError:
                    continue
            if not running.cancelled():
                running.exception()  # seen; the caller is gone or has it

    def _prepare(self, request: InferenceRequest, cancelled: threading.Event) -> DecodeJob:
        constraint = request.constraint
        tools: tuple[ToolDefinition, ...] = ()
        is_enforced = False
        if isinstance(request.prompt, ChatPrompt):
            tools = offered_tools(request.prompt.tools, request.prompt.tool_choice)
            is_enforced = request.prompt.tool_choice.is_enforced
        if is_enforced:
            if constraint is not None:
                raise InvalidRequest("a constraint and an enforced tool_choice cannot both bind the output")
            constraint = Constraint(ConstraintKind.SCHEMA, call_schema(tools))
        tokens = tuple(self.prompt_tokens(request.prompt))
        if not tokens:
            raise InvalidRequest("the prompt is empty")
        names = tuple(tool.name for tool in tools) if is_enforced or self._template.knows_tools else ()
        matchers = tuple(
            self._constraints.start(constraint) if constraint else None for _ in range(request.candidate_count)
        )
        return DecodeJob(
            request=request,
            tokens=tokens,
            max_tokens=self._room(len(tokens), request.max_tokens),
            seed=self._new_seed() if request.seed is None else request.seed,
            matchers=matchers,
            tool_names=names if request.constraint is None else (),
            tool_is_enforced=is_enforced,
            deadline=current_deadline(),
            is_cancelled=cancelled.is_set,
        )

    def _room(self, prompt_tokens: int, max_tokens: int) -> int:
        window = self.engine.model.context_window
        left = window - prompt_tokens
        if left < max(1, max_tokens):
            wanted = f" and max_tokens {max_tokens}" if max_tokens else ""
            raise InvalidRequest(
                f"the prompt has {prompt_tokens} tokens{wanted}, the context window {window}: shorten the prompt"
                + (" or lower max_tokens" if max_tokens else ""),
                code=ErrorCode.INFERENCE_CONTEXT_EXCEEDED,
                details={"prompt_tokens": prompt_tokens, "max_tokens": max_tokens, "context_window": window},
            )
        return max_tokens or min(DEFAULT_MAX_TOKENS, left)

    @staticmethod
    def _rendered_tools(prompt: ChatPrompt) -> tuple[ToolDefinition, ...]:
        if prompt.tool_choice.mode is ToolChoiceMode.NONE and not prompt.tool_choice.tool_name:
            return ()
        return offered_tools(prompt.tools, prompt.tool_choice) if prompt.tools else ()


async def _coalesced(events: asyncio.Queue[Event | None]) -> AsyncGenerator[Event, None]:
    """Give events until None; waiting deltas of one candidate are joined, so a slow reader gets fewer, longer ones."""
    event = await events.get()
    while event is not None:
        following: Event | None = None
        has_following = False
        while isinstance(event, Delta) and not has_following and not events.empty():
            following = events.get_nowait()
            if isinstance(following, Delta) and following.candidate_index == event.candidate_index:
                event = Delta(event.candidate_index, event.content + following.content)
            else:
                has_following = True
        yield event
        event = following if has_following else await events.get()
