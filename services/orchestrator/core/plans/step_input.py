"""What a step sees of its input: messages for a model, text for the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagantic_common.domain.json_text import JsonTextError, dump_json, parse_json
from pagantic_common.domain.messages import Message, Role
from services.orchestrator.core.conversation.prompt import last_user_text
from services.orchestrator.core.model.plan import CallResult, Step, Value, ValueKind
from services.orchestrator.core.model.request import Request

CONTEXT_HEADING = "Relevant context:"


def text_of(value: Value) -> str:
    """Write a value as text."""
    match value.kind:
        case ValueKind.CONTEXT:
            lines = [f"[{number}] ({one.source}): {one.content}" for number, one in enumerate(value.chunks, start=1)]
            return "\n".join([CONTEXT_HEADING, "", *lines])
        case ValueKind.CANDIDATES:
            return "\n".join(f"[{number}] {one.content}" for number, one in enumerate(value.proposals, start=1))
        case ValueKind.TOOL_RESULTS:
            return "\n".join(f"{one.name}: {one.content}" for one in value.results)
        case ValueKind.MESSAGES:
            return value.messages[-1].content if value.messages else ""
        case _:
            return value.text


def value_of(step: Step, request: Request, inputs: Mapping[str, Value]) -> Value:
    """Return the one value that a step works on: its input, what it waits for, or the request's last words."""
    if step.input is not None:
        return step.input
    return next(iter(inputs.values()), Value(ValueKind.TEXT, text=last_user_text(request, ())))


def messages_of(step: Step, request: Request, inputs: Mapping[str, Value]) -> tuple[Message, ...]:
    """Return the conversation that an infer step asks the model; several values come under their steps' names.

    The parameter `prompt` says what to do with them; without one, retrieved context answers the request's last words.
    """
    prompt = str(step.parameters.get("prompt", ""))
    if step.input is None and not inputs:
        given = request.messages
    elif step.input is not None and step.input.kind is ValueKind.MESSAGES:
        given = step.input.messages
    else:
        values = [step.input] if step.input is not None else list(inputs.values())
        if not prompt and all(value.kind is ValueKind.CONTEXT for value in values):
            prompt = last_user_text(request, ())
        if len(values) == 1:
            text = text_of(values[0])
        else:
            text = "\n\n".join(f"## {name}\n{text_of(value)}" for name, value in inputs.items())
        return (Message(Role.USER, content="\n\n".join(part for part in (text, prompt) if part)),)
    if not prompt:
        return given
    *before, last = given
    if last.role is not Role.USER:
        return (*given, Message(Role.USER, content=prompt))
    return (*before, Message(Role.USER, content=f"{last.content}\n\n{prompt}" if last.content else prompt))


def arguments_of(step: Step, value: Value) -> str | None:
    """Return the arguments of a tool step's call, as JSON; None when what it works on gives none.

    The parameter `arguments` stands as it is. With `argument` the text is the value of that one; without either it
    must be a JSON object.
    """
    arguments: Any = step.parameters.get("arguments", {})
    if name := step.parameters.get("argument"):
        return dump_json({**arguments, name: text_of(value)})
    if "arguments" in step.parameters:
        return dump_json(arguments)
    try:
        found = parse_json(value.text, is_rewritable=True)
    except JsonTextError:
        return None
    return dump_json(found) if isinstance(found, dict) else None


def result_value(call_id: str, name: str, content: str) -> Value:
    """Return the value that a tool's result is."""
    return Value(ValueKind.TOOL_RESULTS, results=(CallResult(call_id, name, content),))
