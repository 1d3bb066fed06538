"""Turns a request into work for the engine's loop: the prompt as tokens, the output, and the form of the answers."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.domain.messages import Message, Role
from pagantic_common.telemetry.scope import current_deadline, current_principal
from services.inference.core.answers.answer import AnswerForm
from services.inference.core.answers.call_matcher import CallForm, CallMatcher
from services.inference.core.answers.dialect import VERBATIM, ToolFormat, dialect_of
from services.inference.core.answers.reasoning import with_reasoning
from services.inference.core.decoding.images import IMAGE_TOKEN, EncodedImage, ImageSpan, lay_out
from services.inference.core.decoding.output import Matcher, SampledOutput
from services.inference.core.generation import (
    DEFAULT_MAX_TOKENS,
    ChatPrompt,
    InferenceRequest,
    Prompt,
    ReasoningMode,
    Started,
    TokenPrompt,
)
from services.inference.core.prompts import (
    IMAGE_MARK,
    PLACE,
    ControlTextGuard,
    SharedPrompts,
    template_input,
    with_image_marks,
    with_joined_neighbours,
    with_joined_system,
)
from services.inference.core.scheduling.branches import DecodeRequest
from services.inference.core.scheduling.drafting import PromptLookup
from services.inference.core.scheduling.parked_prefixes import common_length
from services.inference.ports import ChatTemplate, TextEngine

_ENDS = ("", " a", "\na", "\n\na")  # the last token of a text may depend on the next character
_THINKS = {ReasoningMode.ON: True, ReasoningMode.OFF: False}


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """A prompt as tokens, and the form of the answers to the prompt."""

    tokens: list[int]
    form: AnswerForm
    images: tuple[ImageSpan, ...] = ()

    @property
    def text_tokens(self) -> list[int]:
        """The prompt's tokens without the positions of images."""
        if IMAGE_TOKEN not in self.tokens:
            return self.tokens
        return [token for token in self.tokens if token != IMAGE_TOKEN]


class PromptTokenizer:
    """Tokenizes prompts for one model; callable from any thread."""

    def __init__(self, engine: TextEngine, template: ChatTemplate) -> None:
        self._engine = engine
        self._template = template
        self._dialect = dialect_of(template.source)

    def tokenize(
        self,
        prompt: Prompt,
        reasoning: ReasoningMode = ReasoningMode.AUTO,
        images: Sequence[EncodedImage] = (),
    ) -> PromptTokens:
        """Render and tokenize a prompt. `images` are the images of the prompt's messages, in order.

        Raises InvalidRequest if the template rejects the conversation or a token is outside the vocabulary.
        """
        if isinstance(prompt, TokenPrompt):
            self._check_known(prompt.tokens)
            return PromptTokens(list(prompt.tokens), AnswerForm(VERBATIM))
        if isinstance(prompt, str):
            tokens = self._engine.tokenize(prompt, add_special=True, parse_special=True)
            return PromptTokens(tokens, AnswerForm(VERBATIM))
        rendered = template_input(prompt.shown, knows_tools=self._template.knows_tools)
        guard = ControlTextGuard(self._engine.vocabulary.control_texts)
        try:
            messages = with_image_marks(guard.hide(rendered.messages))
            text = self._render(messages, guard.hide(rendered.tools), _THINKS.get(reasoning))
        except RecursionError:
            raise InvalidRequest("a tool call's arguments or a tool's parameters are nested too deeply") from None
        form = AnswerForm(self._dialect.after(text), rendered.tool_names, prompt.tool_choice.is_enforced)
        if not images:
            return PromptTokens(self._tokens_of(guard, text), form)
        return self._with_images(guard, text, form, images)

    def _with_images(
        self, guard: ControlTextGuard, text: str, form: AnswerForm, images: Sequence[EncodedImage]
    ) -> PromptTokens:
        """Return the tokens of a rendered prompt, with each image in place of its mark."""
        first, *others = text.split(IMAGE_MARK)
        if len(others) != len(images):
            raise InvalidRequest(
                f"the model's chat template shows {len(others)} of {len(images)} images: it cannot be used with these "
                "messages"
            )
        tokens = self._tokens_of(guard, first)
        spans: list[ImageSpan] = []
        for image, after in zip(images, others, strict=True):
            image_tokens, image_spans = lay_out(image, len(tokens))
            spans += image_spans
            tokens += image_tokens + self._tokens_of(guard, after)
        return PromptTokens(tokens, form, tuple(spans))

    def tokenize_endings(self, prompt: ChatPrompt | str, endings: Sequence[str]) -> tuple[list[int], list[list[int]]]:
        """Return the tokens before a prompt's endings, and for each ending the tokens from the ending onwards.

        A conversation is rendered once, and each ending is appended to its last message. Raises InvalidRequest if the
        template rejects the conversation or omits its last message.
        """
        if isinstance(prompt, str):
            return self.tokenize(prompt).tokens, [self._tokenize(ending, is_markup=False) for ending in endings]
        guard = ControlTextGuard(self._engine.vocabulary.control_texts)
        messages = guard.hide(template_input(prompt.shown, knows_tools=self._template.knows_tools).messages)
        messages[-1]["content"] += PLACE
        before, *after = self._render(messages, [], _THINKS[ReasoningMode.OFF]).split(PLACE)
        if len(after) != 1:
            raise InvalidRequest(
                "the model's chat template does not show the last message once: it cannot have several endings"
            )
        return self._tokens_of(guard, before), [
            self._tokens_of(guard, guard.hide(ending) + after[0]) for ending in endings
        ]

    @property
    def arguments_key(self) -> str:
        """The key of the arguments in the calls of this model."""
        if self._dialect.tool_format is ToolFormat.LLAMA3 and self._template.knows_tools:
            return "parameters"
        return "arguments"

    def system_prefix(self, text: str) -> list[int]:
        """Return the first tokens that all conversations share if their system message begins with `text`."""
        prompts = [
            self.tokenize(ChatPrompt((Message(Role.SYSTEM, text + end), Message(Role.USER, "?")))).tokens
            for end in _ENDS
        ]
        first = prompts[0]
        return first[: min(common_length(first, other, len(first)) for other in prompts)]

    def _check_known(self, tokens: Sequence[int]) -> None:
        size = self._engine.vocabulary.size
        if unknown := [position for position, token in enumerate(tokens) if not 0 <= token < size]:
            raise InvalidRequest(
                f"token {unknown[0]} of the prompt is {tokens[unknown[0]]}: the model has the tokens 0 to {size - 1}, "
                "tokenize with its own tokenizer"
            )

    def _tokens_of(self, guard: ControlTextGuard, rendered: str) -> list[int]:
        return [
            token for part, is_markup in guard.split(rendered) for token in self._tokenize(part, is_markup=is_markup)
        ]

    def _tokenize(self, text: str, *, is_markup: bool) -> list[int]:
        return self._engine.tokenize(text, add_special=False, parse_special=is_markup)

    def _render(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]], thinks: bool | None) -> str:
        """Render a conversation.

        If the template rejects it, first all system messages are joined at the beginning, and then neighbours of one
        role, because many templates accept only one system message or require users and assistants to alternate.
        """
        try:
            return self._template.render(messages, tools, thinks=thinks)
        except InvalidRequest as error:
            rejection = error
        for join in (with_joined_system, with_joined_neighbours):
            joined = join(messages)
            if joined == messages:
                continue
            messages = joined
            try:
                return self._template.render(messages, tools, thinks=thinks)
            except InvalidRequest as error:
                rejection = error
        raise rejection


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request that is ready to be decoded."""

    decode: DecodeRequest
    started: Started
    form: AnswerForm


class RequestPreparer:
    """Prepares requests for one model; callable from any thread.

    Args:
        engine: The engine of the model.
        template: The model's chat template.
        may_draft: Whether to draft tokens, by prompt lookup and with a draft model.
        new_seed: Returns a seed for a request without a seed.
        shared_prompts: The prefixes of system messages that tenants share in the cache.
    """

    def __init__(
        self,
        engine: TextEngine,
        template: ChatTemplate,
        *,
        may_draft: bool,
        new_seed: Callable[[], int],
        shared_prompts: Sequence[str] = (),
    ) -> None:
        self._engine = engine
        self._prompts = PromptTokenizer(engine, template)
        self._may_draft = may_draft
        self._new_seed = new_seed
        self._shared = SharedPrompts([self._prompts.system_prefix(text) for text in shared_prompts])

    def tokenize(self, prompt: ChatPrompt | str, images: Sequence[EncodedImage] = ()) -> list[int]:
        """Return the tokens of a rendered prompt with the images of its messages."""
        return self._prompts.tokenize(prompt, images=images).tokens

    def tokenize_endings(self, prompt: ChatPrompt | str, endings: Sequence[str]) -> tuple[list[int], list[list[int]]]:
        """Return the tokens before a prompt's endings, and for each ending the tokens from the ending onwards."""
        return self._prompts.tokenize_endings(prompt, endings)

    def shared_length(self, tokens: Sequence[int]) -> int:
        """Return the length of the prompt's prefix that all tenants share in the cache."""
        return self._shared.shared_length(tokens)

    @property
    def arguments_key(self) -> str:
        """The key of the arguments in the calls of this model."""
        return self._prompts.arguments_key

    def prepare(
        self,
        request: InferenceRequest,
        matcher: Matcher | None,
        images: Sequence[EncodedImage] = (),
        offered_call: CallForm | None = None,
    ) -> PreparedRequest:
        """Return a request that is ready to be decoded.

        Args:
            request: The request.
            matcher: Enforces the request's constraint or its tool call.
            images: The images of the request's messages, in order.
            offered_call: Holds the calls of a model that may call a tool but need not. Only without `matcher`.

        Raises InvalidRequest, with the code INFERENCE_CONTEXT_EXCEEDED if the prompt does not fit into the context
        window.
        """
        prompt = self._prompts.tokenize(request.prompt, request.reasoning.mode, images)
        if not prompt.tokens:
            raise InvalidRequest("the prompt is empty")
        max_tokens = self._max_tokens(len(prompt.tokens), request.max_tokens)
        self._check_vocabulary(request)
        seed = request.seed
        if seed is None:
            seed = self._new_seed()
        form = _form_of_answers(prompt.form, request, offered_call)
        if offered_call is not None:
            matcher = CallMatcher(offered_call.matcher, form.dialect, self._engine.vocabulary, self._tokenize_text)
        output = self._output(request, prompt, form, matcher, max_tokens)
        draws = tuple(_random_stream(seed + index) for index in range(request.candidate_count))
        said_text = output.resume(request.said_tokens, draws[0]) if request.said_tokens else ""
        drafter = None
        if self._may_draft and request.candidate_count == 1 and not prompt.images:
            drafter = PromptLookup(prompt.tokens)
        decode = DecodeRequest(
            tokens=tuple(prompt.tokens),
            output=output,
            draws=draws,
            max_tokens=max_tokens,
            priority=request.priority,
            deadline=current_deadline(),
            tenant=current_principal().tenant,
            shared_tokens=self.shared_length(prompt.tokens),
            drafter=drafter,
            may_draft=self._may_draft,
            reports_tokens=request.reports_tokens,
            prefixes=request.prefixes,
            said_tokens=request.said_tokens,
            said_text=said_text,
            images=prompt.images,
        )
        return PreparedRequest(decode, Started(self._engine.model, len(prompt.tokens), 0, seed, uuid.uuid4().hex), form)

    def _output(
        self,
        request: InferenceRequest,
        prompt: PromptTokens,
        form: AnswerForm,
        matcher: Matcher | None,
        max_tokens: int,
    ) -> SampledOutput:
        stop = request.stop
        if form.is_enforced:
            stop = ()  # a stop string would cut off the call's JSON
        else:
            matcher = with_reasoning(
                matcher, request.reasoning, form.dialect, self._engine.vocabulary, self._tokenize_control
            )
        return SampledOutput(
            vocabulary=self._engine.vocabulary,
            sampling=request.sampling,
            max_tokens=max_tokens,
            stop=stop,
            stop_tokens=request.stop_tokens,
            matcher=matcher,
            prompt_tokens=prompt.text_tokens,
            top_logprobs=request.top_logprobs,
        )

    def _tokenize_text(self, text: str) -> list[int]:
        return self._engine.tokenize(text, add_special=False, parse_special=False)

    def _tokenize_control(self, text: str) -> list[int]:
        return self._engine.tokenize(text, add_special=False, parse_special=True)

    def _check_vocabulary(self, request: InferenceRequest) -> None:
        size = self._engine.vocabulary.size
        if unknown := [token for token in request.sampling.logit_bias if token >= size]:
            raise InvalidRequest(f"sampling.logit_bias names token {unknown[0]}: the model has {size} tokens")
        if unknown := [token for token in request.stop_tokens if not 0 <= token < size]:
            raise InvalidRequest(f"the stop token {unknown[0]} is not known: the model has the tokens 0 to {size - 1}")

    def _max_tokens(self, prompt_tokens: int, max_tokens: int) -> int:
        """Return the requested or default output limit. Raises InvalidRequest if the window has no room for it."""
        window = self._engine.model.context_window
        remaining_tokens = window - prompt_tokens
        if remaining_tokens >= max(1, max_tokens):
            return max_tokens or min(DEFAULT_MAX_TOKENS, remaining_tokens)
        sizes, advice = f"{prompt_tokens} tokens", "shorten the prompt"
        if max_tokens:
            sizes, advice = f"{sizes} and max_tokens {max_tokens}", f"{advice} or lower max_tokens"
        raise InvalidRequest(
            f"the prompt has {sizes}, the context window {window}: {advice}",
            code=ErrorCode.INFERENCE_CONTEXT_EXCEEDED,
            details={"prompt_tokens": prompt_tokens, "max_tokens": max_tokens, "context_window": window},
        )


def _form_of_answers(form: AnswerForm, request: InferenceRequest, offered_call: CallForm | None) -> AnswerForm:
    """Return a prompt's form of answers, adapted to the request's constraint and offered call."""
    if request.constraint is not None:
        return form.under_constraint()
    if offered_call is not None:
        return replace(form, holds_arguments=offered_call.holds_arguments)
    return replace(form, holds_arguments=form.is_enforced)


def _random_stream(seed: int) -> Callable[[], float]:
    return np.random.Generator(np.random.Philox(key=seed % 2**64)).random
