"""Prompts as the model sees them: a conversation is rendered by the model's chat template, then tokenized."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.messages import Message, Role
from services.inference.core.answers.answer import AnswerForm
from services.inference.core.answers.dialect import VERBATIM, dialect_of
from services.inference.core.decoding.images import IMAGE_TOKEN, EncodedImage, ImageSpan, lay_out
from services.inference.core.generation import ChatPrompt, Prompt, ReasoningMode, TokenPrompt
from services.inference.core.prompts.chat import template_input, with_image_marks, with_joined_system
from services.inference.core.prompts.control_text import IMAGE_MARK, PLACE, ControlTextGuard
from services.inference.core.scheduling.cells.parked_prefixes import common_length
from services.inference.ports import ChatTemplate, TextEngine

_ENDS = ("", " a", "\na", "\n\na")  # the last token of a text may depend on what follows
_THINKS = {ReasoningMode.ON: True, ReasoningMode.OFF: False}


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """A prompt as tokens, and how the model writes the answer to it."""

    tokens: list[int]
    form: AnswerForm
    images: tuple[ImageSpan, ...] = ()

    @property
    def text_tokens(self) -> list[int]:
        """The tokens that are not an image's."""
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
        """Return a prompt's tokens; `images` are those of its messages, in order.

        Raises InvalidRequest for a conversation that the template refuses, and for a token that the model lacks.
        """
        if isinstance(prompt, TokenPrompt):
            self._check_known(prompt.tokens)
            return PromptTokens(list(prompt.tokens), AnswerForm(VERBATIM))
        if isinstance(prompt, str):
            tokens = self._engine.tokenize(prompt, add_special=True, parse_special=True)
            return PromptTokens(tokens, AnswerForm(VERBATIM))
        rendered = template_input(prompt, knows_tools=self._template.knows_tools)
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
        """Return the tokens of a rendered prompt, with its images at their marks."""
        first, *others = text.split(IMAGE_MARK)
        if len(others) != len(images):
            raise InvalidRequest(
                f"the model's chat template shows {len(others)} of {len(images)} images: it cannot be used with these "
                "messages"
            )
        tokens = self._tokens_of(guard, first)
        spans: list[ImageSpan] = []
        for image, after in zip(images, others, strict=True):
            seen, found = lay_out(image, len(tokens))
            spans += found
            tokens += seen + self._tokens_of(guard, after)
        return PromptTokens(tokens, form, tuple(spans))

    def tokenize_endings(self, prompt: ChatPrompt | str, endings: Sequence[str]) -> tuple[list[int], list[list[int]]]:
        """Return the tokens that all endings of a prompt have before them, and those from each ending on.

        A conversation is rendered once, and its last message gets the endings. Raises InvalidRequest for a conversation
        that the template refuses, or whose last message it leaves out.
        """
        if isinstance(prompt, str):
            return self.tokenize(prompt).tokens, [self._tokenize(ending, is_markup=False) for ending in endings]
        guard = ControlTextGuard(self._engine.vocabulary.control_texts)
        messages = guard.hide(template_input(prompt, knows_tools=self._template.knows_tools).messages)
        messages[-1]["content"] += PLACE
        before, *after = self._render(messages, [], _THINKS[ReasoningMode.OFF]).split(PLACE)
        if len(after) != 1:
            raise InvalidRequest(
                "the model's chat template does not show the last message once: it cannot have several endings"
            )
        return self._tokens_of(guard, before), [self._tokens_of(guard, guard.hide(one) + after[0]) for one in endings]

    def system_prefix(self, text: str) -> list[int]:
        """Return the tokens with which conversations begin whose system message is a text, or continues it."""
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
        """Render a conversation; if the template refuses later system messages, join them at the beginning."""
        try:
            return self._template.render(messages, tools, thinks=thinks)
        except InvalidRequest:
            joined = with_joined_system(messages)
            if joined == messages:
                raise
            return self._template.render(joined, tools, thinks=thinks)
