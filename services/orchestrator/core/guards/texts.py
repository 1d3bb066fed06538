"""The texts that reach a model and that the guards check, in order, and their replacement."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from pagantic_common.domain.images import moved
from pagantic_common.domain.messages import Message, Role, ToolDefinition
from pagantic_common.domain.text.json_text import JsonTextError, dump_json, parse_json
from pagantic_common.guards.plugin import GuardStage
from services.orchestrator.core.model.decision import Decisions, Option, Question
from services.orchestrator.core.model.request import Request, SystemPrompt


@dataclass(frozen=True, slots=True)
class GuardedText:
    """A text of a request.

    `is_untrusted` is set if a user or a tool wrote the text, rather than the application or a model.
    """

    text: str
    stage: GuardStage = GuardStage.INPUT
    is_untrusted: bool = False


Change = Callable[[GuardedText], str]


def texts_of(request: Request) -> tuple[GuardedText, ...]:
    """Return the texts that a model may see.

    Results of caller-run tools count as tool results.
    """
    return tuple(gathered(lambda change: _mapped(request, change)))


def gathered(apply: Callable[[Change], object]) -> list[GuardedText]:
    """Return the texts to which `apply` applies a change, in order."""
    texts: list[GuardedText] = []

    def note(text: GuardedText) -> str:
        texts.append(text)
        return text.text

    apply(note)
    return texts


def with_texts(request: Request, texts: Iterator[str]) -> Request:
    """Return the request with its texts replaced by the given texts, in the order of `texts_of`.

    Any remaining texts stay unchanged, because an earlier version's journal contains only the texts of the messages.
    """
    return _mapped(request, lambda text: next(texts, text.text))


def _mapped(request: Request, change: Change) -> Request:
    """Return the request with `change` applied to its texts. New kinds of texts come last, as `with_texts` requires."""
    return replace(
        request,
        prompt=_mapped_prompt(request.prompt, change),
        messages=tuple(map_message(message, change) for message in request.messages),
        text_prompt=_changed(request.text_prompt, change, is_untrusted=True),
        client_tools=tuple(_mapped_tool(tool, change) for tool in request.client_tools),
        output=replace(request.output, schema_json=map_json(request.output.schema_json, change)),
        semantic_intent=_changed(request.semantic_intent, change),
        decisions=_mapped_decisions(request.decisions, change),
    )


def _mapped_prompt(prompt: SystemPrompt, change: Change) -> SystemPrompt:
    template = prompt.template
    if template is not None:
        variables = tuple((name, _changed(value, change)) for name, value in template.variables)
        template = replace(template, variables=variables)
    sets = tuple((name, tuple(_changed(rule, change) for rule in rules)) for name, rules in prompt.sets)
    return replace(prompt, text=_changed(prompt.text, change), sets=sets, template=template)


def _mapped_tool(tool: ToolDefinition, change: Change) -> ToolDefinition:
    description = _changed(tool.description, change)
    return replace(tool, description=description, parameters_json=map_json(tool.parameters_json, change))


def _mapped_decisions(decisions: Decisions | None, change: Change) -> Decisions | None:
    if decisions is None:
        return None
    return replace(decisions, questions=tuple(_mapped_question(question, change) for question in decisions.questions))


def _mapped_question(question: Question, change: Change) -> Question:
    instructions = _changed(question.instructions, change)
    return replace(
        question,
        instructions=instructions,
        options=tuple(_mapped_option(option, change) for option in question.options),
    )


def _mapped_option(option: Option, change: Change) -> Option:
    value = option.value if isinstance(option.value, bool) else _changed(option.value, change)
    return Option(value, _changed(option.description, change))


def map_message(message: Message, change: Change) -> Message:
    """Return the message with `change` applied to its texts."""
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


def map_json(text: str, change: Change, stage: GuardStage = GuardStage.INPUT) -> str:
    """Return a JSON text with `change` applied to its unescaped strings, or the same text if nothing changes.

    A text that is not JSON is changed as a whole.
    """
    if not text:
        return text
    try:
        document = parse_json(text)
    except JsonTextError:
        return _changed(text, change, stage)
    mapped = _map_strings(document, lambda string: _changed(string, change, stage))
    return text if mapped == document else dump_json(mapped)


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """Return a JSON value with `change` applied to each string and key in order. Numbers are changed as text."""
    match value:
        case str():
            return change(value)
        case list():
            return [_map_strings(item, change) for item in value]
        case dict():
            return {change(key): _map_strings(item, change) for key, item in value.items()}
        case bool() | None:
            return value
        case _:
            written = dump_json(value)
            changed = change(written)
            return value if changed == written else changed


def _changed(text: str, change: Change, stage: GuardStage = GuardStage.INPUT, *, is_untrusted: bool = False) -> str:
    if not text:
        return text
    return change(GuardedText(text, stage, is_untrusted))
