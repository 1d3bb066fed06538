"""The use-case behind Infer: a request becomes work for the engine's loop, and its events an answer."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import numpy as np

from pagantic_common.domain.clock import Clock
from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.domain.messages import ToolChoiceMode, ToolDefinition
from pagantic_common.telemetry.scope import current_deadline
from services.inference.app.answer_stream import AnswerStream
from services.inference.app.engine_loop import EngineLoop
from services.inference.app.preparation import Preparation
from services.inference.core.answers.answer import AnswerParser
from services.inference.core.answers.dialect import VERBATIM, Dialect, dialect_of
from services.inference.core.decoding.output import Matcher, Output
from services.inference.core.decoding.reasoning_phase import ReasoningFormat, ReasoningMatcher
from services.inference.core.generation import (
    DEFAULT_MAX_TOKENS,
    ChatPrompt,
    Constraint,
    ConstraintKind,
    Event,
    InferenceRequest,
    ReasoningMode,
    Started,
)
from services.inference.core.prompts.chat import plain_messages, template_messages, template_tools, with_joined_system
from services.inference.core.prompts.control_text import ControlTextGuard
from services.inference.core.prompts.tool_calls import call_schema, offered_tools
from services.inference.core.scheduling.branches import DecodeRequest
from services.inference.core.scheduling.drafting import PromptLookup
from services.inference.ports import ChatTemplate, ConstraintCompiler, TextEngine


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A request, ready to decode, and how to read what comes."""

    decode: DecodeRequest
    started: Started
    dialect: Dialect
    tool_names: tuple[str, ...]
    is_enforced: bool


class Generation:
    """Infer over one model, and what needs its tokenizer alone."""

    def __init__(
        self,
        *,
        loop: EngineLoop,
        template: ChatTemplate,
        constraints: ConstraintCompiler,
        clock: Clock,
        max_candidates: int,
        may_draft: bool,
        new_seed: Callable[[], int],
    ) -> None:
        self.loop = loop
        self.engine: TextEngine = loop.engine
        self._template = template
        self._dialect = dialect_of(template.source)
        self._constraints = constraints
        self._clock = clock
        self._max_candidates = max_candidates
        self._may_draft = may_draft
        self._new_seed = new_seed
        self._running: dict[str, tuple[int, int]] = {}
        self.preparation = Preparation(self.engine, window_tokens=self.engine.model.context_window)

    async def close(self) -> None:
        """Stop what still decodes, within one step, and let every thread that uses the model end."""
        await asyncio.to_thread(self.loop.close)
        await self.preparation.close()

    def runs(self, inference_id: str) -> bool:
        """Tell whether an inference runs here."""
        return inference_id in self._running

    def cancel_candidates(self, inference_id: str, indexes: Sequence[int]) -> None:
        """Give up candidates of an inference that runs here; raises InvalidRequest for one that it does not have."""
        number, count = self._running[inference_id]
        if wrong := [index for index in indexes if not 0 <= index < count]:
            raise InvalidRequest(f"candidate {wrong[0]} does not exist: this inference has {count}")
        for index in indexes:
            self.loop.cancel_candidate(number, index)

    async def prompt_tokens(self, prompt: ChatPrompt | str) -> list[int]:
        """Return a prompt as the model would see it."""
        self._check_size(prompt)
        tokens, _ = await self.preparation.run(self._tokenize, prompt)
        return tokens

    async def infer(self, request: InferenceRequest) -> AsyncGenerator[Event, None]:
        """Stream the events of one request. Closing the generator stops decoding within one step."""
        if not 1 <= request.candidate_count <= self._max_candidates:
            raise InvalidRequest(
                f"candidate_count is {request.candidate_count}: it must be between 1 and {self._max_candidates}"
            )
        self.loop.check_capacity()
        self._check_size(request.prompt)
        constraint = request.constraint
        if _is_enforced(request):
            constraint = await self.preparation.run(_call_constraint, request)
        matcher = await self._constraints.start(constraint) if constraint is not None else None
        prepared = await self.preparation.run(self._prepare, request, matcher)
        stream = AnswerStream(
            started=prepared.started,
            new_parser=lambda: AnswerParser(
                prepared.dialect, prepared.tool_names, is_enforced=prepared.is_enforced, new_call_id=_new_call_id
            ),
            candidate_count=request.candidate_count,
            is_enforced=prepared.is_enforced,
            clock=self._clock,
        )
        number = self.loop.submit(prepared.decode, stream.put)
        self._running[prepared.started.inference_id] = (number, request.candidate_count)
        try:
            async with aclosing(stream.events()) as events:
                async for event in events:
                    yield event
        finally:
            del self._running[prepared.started.inference_id]
            self.loop.cancel(number)

    def _tokenize(
        self, prompt: ChatPrompt | str, reasoning: ReasoningMode = ReasoningMode.AUTO
    ) -> tuple[list[int], Dialect]:
        """Return a prompt as the model would see it, and how the model will write after it."""
        if isinstance(prompt, str):
            return self.engine.tokenize(prompt, add_special=True, parse_special=False), VERBATIM
        tools = self._rendered_tools(prompt)
        guard = ControlTextGuard(self.engine.vocabulary.control_texts)
        if self._template.knows_tools:
            messages, rendered_tools = template_messages(prompt.messages), template_tools(tools)
        else:
            messages = plain_messages(prompt.messages, tools if prompt.tool_choice.is_enforced else ())
            rendered_tools = []
        thinks = None if reasoning is ReasoningMode.AUTO else reasoning is ReasoningMode.ON
        try:
            text = self._render(guard.hide(messages), guard.hide(rendered_tools), thinks=thinks)
        except RecursionError:
            raise InvalidRequest("a tool call's arguments or a tool's parameters are nested too deeply") from None
        tokens = [
            token
            for part, is_meant in guard.split(text)
            for token in self.engine.tokenize(part, add_special=False, parse_special=is_meant)
        ]
        return tokens, self._dialect.after(text)

    def _render(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]], *, thinks: bool | None) -> str:
        """Render a conversation; a template that takes system messages only at the beginning gets them joined there."""
        try:
            return self._template.render(messages, tools, thinks=thinks)
        except InvalidRequest:
            joined = with_joined_system(messages)
            if joined == messages:
                raise
            return self._template.render(joined, tools, thinks=thinks)

    def _check_size(self, prompt: ChatPrompt | str) -> None:
        texts = (prompt,) if isinstance(prompt, str) else tuple(_texts_of(prompt))
        self.preparation.check_text("the prompt", *texts)

    def _prepare(self, request: InferenceRequest, matcher: Matcher | None) -> _Prepared:
        tools = _offered_tools(request)
        is_enforced = _is_enforced(request)
        tokens, dialect = self._tokenize(request.prompt, request.reasoning.mode)
        if not tokens:
            raise InvalidRequest("the prompt is empty")
        names = tuple(tool.name for tool in tools) if is_enforced or self._template.knows_tools else ()
        max_tokens = self._room(len(tokens), request.max_tokens)
        self._check_bias(request)
        seed = self._new_seed() if request.seed is None else request.seed
        if request.constraint is not None and not (dialect.is_reasoning_model or dialect.is_in_reasoning):
            dialect = VERBATIM
        output = Output(
            vocabulary=self.engine.vocabulary,
            sampling=request.sampling,
            max_tokens=max_tokens,
            stop=() if is_enforced else request.stop,  # it would cut the call's JSON
            matcher=self._matcher(request, matcher, dialect, is_enforced=is_enforced),
            prompt_tokens=tokens,
            top_logprobs=request.top_logprobs,
        )
        decode = DecodeRequest(
            tokens=tuple(tokens),
            output=output,
            draws=tuple(_random_stream(seed + index) for index in range(request.candidate_count)),
            max_tokens=max_tokens,
            priority=request.priority,
            deadline=current_deadline(),
            drafter=PromptLookup(tokens) if self._may_draft and request.candidate_count == 1 else None,
        )
        return _Prepared(
            decode=decode,
            started=Started(self.engine.model, len(tokens), 0, seed, uuid.uuid4().hex),
            dialect=dialect,
            tool_names=names if request.constraint is None else (),
            is_enforced=is_enforced,
        )

    def _matcher(
        self, request: InferenceRequest, answer: Matcher | None, dialect: Dialect, *, is_enforced: bool
    ) -> Matcher | None:
        """Return what binds the output; a reasoning model thinks first, unless a call is enforced or it may not."""
        thinks = dialect.is_reasoning_model or dialect.is_in_reasoning
        if is_enforced or dialect.reasoning is None or not thinks:
            return answer
        is_off = request.reasoning.mode is ReasoningMode.OFF
        if is_off and not dialect.is_in_reasoning:
            return answer
        limit = 0 if is_off else request.reasoning.max_tokens or None
        if limit is None and answer is None:
            return None
        opening = self._control_tokens(dialect.reasoning[0])
        form = ReasoningFormat(
            opening=opening[0] if len(opening) == 1 else None,
            closing=dialect.reasoning[1].encode(),
            closing_tokens=tuple(self._control_tokens(f"{dialect.reasoning[1]}\n\n")),
            limit=limit,
        )
        return ReasoningMatcher(form, answer, self.engine.vocabulary, is_open=dialect.is_in_reasoning)

    def _control_tokens(self, text: str) -> list[int]:
        return self.engine.tokenize(text, add_special=False, parse_special=True)

    def _check_bias(self, request: InferenceRequest) -> None:
        size = self.engine.vocabulary.size
        if unknown := [token for token in request.sampling.logit_bias if token >= size]:
            raise InvalidRequest(f"sampling.logit_bias names token {unknown[0]}: the model has {size} tokens")

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


def _texts_of(prompt: ChatPrompt) -> Iterator[str]:
    """Yield what of a conversation becomes a part of the prompt, whatever the template."""
    for message in prompt.messages:
        yield message.content
        for call in message.tool_calls:
            yield call.arguments_json
    if prompt.tool_choice.mode is not ToolChoiceMode.NONE:
        for tool in prompt.tools:
            yield tool.description
            yield tool.parameters_json


def _is_enforced(request: InferenceRequest) -> bool:
    return isinstance(request.prompt, ChatPrompt) and request.prompt.tool_choice.is_enforced


def _offered_tools(request: InferenceRequest) -> tuple[ToolDefinition, ...]:
    if not isinstance(request.prompt, ChatPrompt):
        return ()
    return offered_tools(request.prompt.tools, request.prompt.tool_choice)


def _call_constraint(request: InferenceRequest) -> Constraint:
    """Return the constraint of an enforced call."""
    if request.constraint is not None:
        raise InvalidRequest("a constraint and an enforced tool_choice cannot both bind the output")
    return Constraint(ConstraintKind.SCHEMA, call_schema(_offered_tools(request)))


def _random_stream(seed: int) -> Callable[[], float]:
    return np.random.Generator(np.random.Philox(key=seed % 2**64)).random


def _new_call_id() -> str:
    return f"call_{uuid.uuid4().hex[:16]}"
