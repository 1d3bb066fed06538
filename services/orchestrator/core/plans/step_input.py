"""Converts the input of a step to a child's request, or to text for other kinds of steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pagantic_common.domain.chunks import lay_out
from pagantic_common.domain.messages import Message, Role, ToolChoice, ToolChoiceMode
from pagantic_common.domain.text.json_text import JsonTextError, dump_json, parse_json
from pagantic_common.domain.text.quoting import fenced
from services.orchestrator.core.conversation.prompt import last_user_text
from services.orchestrator.core.model.plan import CallResult, Plan, Step, Value, ValueKind, retry_of
from services.orchestrator.core.model.request import Mode, Request

_HINTS = ("max_tokens", "temperature", "top_p", "seed", "model")  # parameters of an infer step that are hints


def text_of(value: Value) -> str:
    """Return a value as text."""
    match value.kind:
        case ValueKind.CONTEXT:
            return lay_out(value.chunks, is_fenced=False)
        case ValueKind.CANDIDATES:
            return "\n".join(f"[{number}] {item.content}" for number, item in enumerate(value.proposals, start=1))
        case ValueKind.TOOL_RESULTS:
            return "\n".join(f"{item.name}: {item.content}" for item in value.results)
        case ValueKind.MESSAGES:
            return _last_content(value.messages)
        case _:
            return value.text


def _last_content(messages: Sequence[Message]) -> str:
    if not messages:
        return ""
    return messages[-1].content


def value_of(step: Step, request: Request, inputs: Mapping[str, Value]) -> Value:
    """Return the value that a step works on: its input, its dependency's output, or the last user message."""
    if step.input is not None:
        return step.input
    return next(iter(inputs.values()), Value(ValueKind.TEXT, text=last_user_text(request, ())))


def messages_of(step: Step, request: Request, inputs: Mapping[str, Value]) -> tuple[Message, ...]:
    """Return the conversation of an infer step. Several values are listed under the names of their steps.

    The parameter `prompt` is the instruction. For retrieved context, it defaults to the request's last user message.
    """
    prompt = str(step.parameters.get("prompt", ""))
    if step.input is not None and step.input.kind is ValueKind.MESSAGES:
        return _with_prompt(step.input.messages, prompt)
    if step.input is not None:
        inputs = {"input": step.input}
    if not inputs:
        return _with_prompt(request.messages, prompt)
    if not prompt and all(value.kind is ValueKind.CONTEXT for value in inputs.values()):
        prompt = last_user_text(request, ())
    return (Message(Role.USER, content=_join_parts(_text_of_all(inputs), prompt)),)


def _text_of_all(inputs: Mapping[str, Value]) -> str:
    if len(inputs) == 1:
        return _told(next(iter(inputs.values())))
    return "\n\n".join(f"## {name}\n{_told(value)}" for name, value in inputs.items())


def _told(value: Value) -> str:
    """Return a value as text for a model.

    Documents and tool results are quoted, so that the model does not treat them as instructions.
    """
    match value.kind:
        case ValueKind.CONTEXT:
            return lay_out(value.chunks, is_fenced=True)
        case ValueKind.TOOL_RESULTS:
            return f"Results of tools:\n\n{fenced(text_of(value))}"
        case _:
            return text_of(value)


def _with_prompt(messages: tuple[Message, ...], prompt: str) -> tuple[Message, ...]:
    """Append a prompt to the last message if it is a user message, or else add the prompt as a separate message."""
    if not prompt:
        return messages
    *before, last = messages
    if last.role is not Role.USER:
        return (*messages, Message(Role.USER, content=prompt))
    return (*before, replace(last, content=_join_parts(last.content, prompt)))


def _join_parts(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part)


def arguments_of(step: Step, value: Value) -> str | None:
    """Return the arguments of a tool step's call as JSON, or None if they would not be a JSON object.

    The parameter `arguments` is used unchanged. The parameter `argument` names the argument for the value's text.
    Without either parameter, the value itself must be a JSON object.
    """
    arguments: Any = step.parameters.get("arguments", {})
    if name := step.parameters.get("argument"):
        return dump_json({**arguments, name: text_of(value)})
    if "arguments" in step.parameters:
        return dump_json(arguments)
    try:
        document = parse_json(value.text, is_rewritable=True)
    except JsonTextError:
        return None
    if not isinstance(document, dict):
        return None
    return dump_json(document)


def result_value(call_id: str, name: str, content: str) -> Value:
    """Return a tool's result as a value."""
    return Value(ValueKind.TOOL_RESULTS, results=(CallResult(call_id, name, content),))


def request_of_step(step: Step, plan: Plan, request: Request, inputs: Mapping[str, Value]) -> Request:
    """Return the request for the child of a step.

    `request` is the plan's request with the results of PREPARE, and `inputs` are the outputs of other steps.
    """
    parameters = step.parameters
    tools = tuple(parameters.get("tools", ()))
    choice = ToolChoice(mode=ToolChoiceMode.NONE)
    if tools:
        choice = _tool_choice(str(parameters.get("tool_choice", "auto")))
    mode = Mode.CHAT
    if step.output.schema_json:
        mode = Mode.STRUCTURED
    step_request = Request(
        request_id=request.request_id,
        trace_id=request.trace_id,
        mode=mode,
        messages=messages_of(step, request, inputs),
        prompt=request.prompt,
        hints=replace(
            request.hints, **{name: parameters[name] for name in _HINTS if name in parameters}, tool_choice=choice
        ),
        output=step.output,
        tools=tools,
        retry=retry_of(step, request.retry),
        tenant=request.tenant,
        subject=request.subject,
        tool_policy=request.tool_policy,
        is_guarded=request.is_guarded,
    )
    if step.name == plan.steps[-1].name:
        return replace(step_request, rules=request.rules, semantic_intent=request.semantic_intent)
    return step_request


def _tool_choice(name: str) -> ToolChoice:
    """Return the tool choice in a step's parameter: either a mode or the name of a tool."""
    if name in tuple(ToolChoiceMode):
        return ToolChoice(mode=ToolChoiceMode(name))
    return ToolChoice(tool_name=name)
