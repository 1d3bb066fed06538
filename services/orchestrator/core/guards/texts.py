"""The texts of a request that the guards check, in order, and the replacement of these texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from pagantic_common.domain.images import moved
from pagantic_common.domain.messages import Message, Role
from pagantic_common.guards.plugin import GuardStage
from services.orchestrator.core.model.request import Request, SystemPrompt


@dataclass(frozen=True, slots=True)
class GuardedText:
    """A text of a request.

    `is_untrusted` is set if the text comes from a user or a tool, rather than from the application or a model.
    """

    text: str
    stage: GuardStage = GuardStage.INPUT
    is_untrusted: bool = False


Change = Callable[[GuardedText], str]


def texts_of(request: Request) -> tuple[GuardedText, ...]:
    """Return the texts that a model may see.

    The results of tools that the caller ran count as tool results.
    """
    texts: list[GuardedText] = []

    def note(text: GuardedText) -> str:
        texts.append(text)
        return text.text

    _mapped(request, note)
    return tuple(texts)


def with_texts(request: Request, texts: Iterator[str]) -> Request:
    """Return the request with its texts replaced by the given texts, in the order of `texts_of`."""
    return _mapped(request, lambda _text: next(texts))


def _mapped(request: Request, change: Change) -> Request:
    return replace(
        request,
        prompt=_mapped_prompt(request.prompt, change),
        messages=tuple(_mapped_message(message, change) for message in request.messages),
        text_prompt=_changed(request.text_prompt, change, is_untrusted=True),
    )


def _mapped_prompt(prompt: SystemPrompt, change: Change) -> SystemPrompt:
    template = prompt.template
    if template is not None:
        variables = tuple((name, _changed(value, change)) for name, value in template.variables)
        template = replace(template, variables=variables)
    sets = tuple((name, tuple(_changed(rule, change) for rule in rules)) for name, rules in prompt.sets)
    return replace(prompt, text=_changed(prompt.text, change), sets=sets, template=template)


def _mapped_message(message: Message, change: Change) -> Message:
    stage = GuardStage.TOOL_RESULTS if message.role is Role.TOOL else GuardStage.INPUT
    calls = tuple(replace(call, arguments_json=_changed(call.arguments_json, change)) for call in message.tool_calls)
    content = _changed(message.content, change, stage, is_untrusted=message.role in (Role.USER, Role.TOOL))
    return replace(
        message,
        content=content,
        reasoning=_changed(message.reasoning, change),
        tool_calls=calls,
        images=moved(message.images, message.content, content),
    )


def _changed(text: str, change: Change, stage: GuardStage = GuardStage.INPUT, *, is_untrusted: bool = False) -> str:
    if not text:
        return text
    return change(GuardedText(text, stage, is_untrusted))
