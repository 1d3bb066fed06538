"""Converts a request to `/v1/chat/completions` into a SystemRequest."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from gateway.http.bodies import read_message
from gateway.http.openai.forms import (
    AnswerForm,
    CallForm,
    ChatForm,
    ContentPart,
    FunctionForm,
    MessageForm,
    NamedFunction,
    ToolChoiceForm,
    ToolForm,
)
from pagantic.common.v1 import message_pb2
from pagantic.inference.v1 import generation_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.codec.messages import duration_to_proto
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.ids import require_id
from pagantic_common.domain.images import read_data_url

SEEDS = 1 << 64
_TOKEN = re.compile("[0-9]{1,9}")
_ROLES = {
    "system": message_pb2.ROLE_SYSTEM,
    "developer": message_pb2.ROLE_SYSTEM,
    "user": message_pb2.ROLE_USER,
    "assistant": message_pb2.ROLE_ASSISTANT,
    "tool": message_pb2.ROLE_TOOL,
}
_CHOICE_MODES = {
    "auto": message_pb2.TOOL_CHOICE_MODE_AUTO,
    "none": message_pb2.TOOL_CHOICE_MODE_NONE,
    "required": message_pb2.TOOL_CHOICE_MODE_REQUIRED,
}
_ANY_OBJECT = '{"type":"object"}'
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}
# A parameter schema with only these keywords lists its parameters in `properties` and `required`, or has none.
_LISTING_KEYWORDS = frozenset({"type", "properties", "required", "title", "description", "$schema", "$id", "$comment"})
# The modes that may offer every tool of the deployment if a request does not name tools.
_OFFERING_MODES = (execution_pb2.MODE_UNSPECIFIED, execution_pb2.MODE_CHAT, execution_pb2.MODE_STRUCTURED)


def request_of(
    form: ChatForm, alias: str, call_s: float, earlier_calls: Mapping[str, str] = MappingProxyType({})
) -> execution_pb2.SystemRequest:
    """Return the request for a form. Raises InvalidRequest if the form uses an unsupported feature.

    The form's field `pagantic` is a SystemRequest as JSON; the other fields override it.

    Args:
    form: The client's form.
    alias: The alias of the model that the form names.
    call_s: Maximum duration of the request, unless the request sets a shorter one.
    earlier_calls: Names of the tools that were called before the messages of the form, by the ids of the calls.
    """
    if form.modalities and form.modalities != ["text"]:
        raise InvalidRequest(f"modalities are {form.modalities}: answers are text, so send ['text'] or nothing")
    request = read_extension(form.pagantic or {})
    request.messages.extend(messages_of(form.messages, earlier_calls))
    _end_with_user(request.messages[-1])
    set_answer(request, form, alias, call_s)
    _set_tools(request, form)
    request.hints.max_tokens = form.max_completion_tokens or request.hints.max_tokens
    if form.logprobs:
        request.hints.top_logprobs = form.top_logprobs or 0
    if form.reasoning_effort == "none":
        request.hints.reasoning.mode = generation_pb2.REASONING_MODE_OFF
    if not request.mode:
        request.mode = execution_pb2.MODE_CHAT
        if request.output.schema_json:
            request.mode = execution_pb2.MODE_STRUCTURED
    return request


def _end_with_user(last: message_pb2.Message) -> None:
    """Make the last message the user's if it is a system message, because the orchestrator requires that."""
    if last.role == message_pb2.ROLE_SYSTEM:
        last.role, last.said_as = message_pb2.ROLE_USER, last.said_as or "system"


def set_answer(request: execution_pb2.SystemRequest, form: AnswerForm, alias: str, call_s: float) -> None:
    """Set the request's options for the answer from the form: model, format, sampling, length and time."""
    _set_output(request, form)
    _set_hints(request.hints, form)
    if alias:
        request.hints.model = alias
    bound_time(request, call_s)


def bound_time(request: execution_pb2.SystemRequest, call_s: float) -> None:
    """Limit the duration of a request to `call_s` seconds."""
    asked_s = request.hints.timeout.ToMilliseconds() / 1000
    if not asked_s or asked_s > call_s:
        request.hints.timeout.CopyFrom(duration_to_proto(call_s))


def read_extension(fields: Mapping[str, Any]) -> execution_pb2.SystemRequest:
    """Return the SystemRequest in a form's field `pagantic`. Raises InvalidRequest if the field is invalid."""
    request = read_message(dict(fields), execution_pb2.SystemRequest, "pagantic")
    for name in ("messages", "text_prompt"):
        if getattr(request, name):
            raise InvalidRequest(f"pagantic.{name} is set: leave it out, the request itself has what the model reads")
    if request.request_id:
        require_id("pagantic.request_id", request.request_id)  # The id is also a response header.
    return request


def messages_of(forms: Sequence[MessageForm], earlier_calls: Mapping[str, str]) -> list[message_pb2.Message]:
    """Return the messages of forms. Raises InvalidRequest if a message is unreadable."""
    names_of_calls = dict(earlier_calls)
    messages = []
    for index, form in enumerate(forms):
        messages.append(_message(form, f"messages[{index}]", names_of_calls))
        names_of_calls.update({call.id: call.name for call in messages[-1].tool_calls})
    return messages


def _message(form: MessageForm, place: str, names_of_calls: Mapping[str, str]) -> message_pb2.Message:
    if form.role == "function":
        raise InvalidRequest(f"{place}.role is 'function', which is of an earlier API: send 'tool' with a tool_call_id")
    message = _said(form, place)
    if form.role == "assistant":
        message.reasoning = form.reasoning_content or ""
        message.tool_calls.extend(
            _call(call, f"{place}.tool_calls[{index}]") for index, call in enumerate(form.tool_calls or ())
        )
    if form.role == "tool":
        message.tool_call_id = form.tool_call_id or ""
        message.name = names_of_calls.get(message.tool_call_id, "")
        if not message.name:
            raise InvalidRequest(
                f"{place}.tool_call_id is {message.tool_call_id[:128]!r}: no tool call of a message before has this id"
            )
    return message


def _said(form: MessageForm, place: str) -> message_pb2.Message:
    """Return a message with its role and content, and with parts if it contains an image."""
    parts = _parts_of(form, place)
    message = message_pb2.Message(role=_ROLES[form.role], content="".join(part.text for part in parts))
    if form.role == "developer":
        message.said_as = form.role
    if not any(part.HasField("image") for part in parts):
        return message
    if form.role != "user":
        raise InvalidRequest(
            f"{place} is of the role {form.role!r} and has an image: only a user's messages have images"
        )
    message.parts.extend(parts)
    return message


def _call(call: CallForm, place: str) -> message_pb2.ToolCall:
    if call.function is None or call.type != "function":
        raise InvalidRequest(f"{place} calls no function, and only functions are known")
    return message_pb2.ToolCall(id=call.id, name=call.function.name, arguments_json=call.function.arguments or "{}")


def _parts_of(form: MessageForm, place: str) -> list[message_pb2.ContentPart]:
    if isinstance(form.content, list):
        return [_part_of(part, f"{place}.content[{index}]") for index, part in enumerate(form.content)]
    text = form.content or ""
    if form.content is None and form.role == "assistant":
        text = form.refusal or ""
    return [message_pb2.ContentPart(text=text)]


def _part_of(part: ContentPart, place: str) -> message_pb2.ContentPart:
    if part.type == "image_url":
        media_type, data = read_data_url(part.data_url, f"{place}.image_url")
        return message_pb2.ContentPart(image=message_pb2.Image(media_type=media_type, data=data))
    return message_pb2.ContentPart(text=_part_text(part, place))


def _part_text(part: ContentPart, place: str) -> str:
    text = part.text
    if part.type == "refusal":
        text = part.refusal
    if part.type not in ("text", "refusal") or text is None:
        raise InvalidRequest(
            f"{place} has the type {part.type[:64]!r}: models here read the types 'text' and 'image_url'"
        )
    return text


def _set_output(request: execution_pb2.SystemRequest, form: AnswerForm) -> None:
    form_of_answer = form.response_format
    if form_of_answer is None or form_of_answer.type == "text":
        return
    if form_of_answer.type == "json_object":
        request.output.schema_json = _ANY_OBJECT
        return
    if form_of_answer.json_schema is None or form_of_answer.json_schema.schema_ is None:
        raise InvalidRequest("response_format.json_schema.schema is missing: send the JSON Schema of the answer")
    request.output.schema_json = json.dumps(form_of_answer.json_schema.schema_, ensure_ascii=False)


def _set_tools(request: execution_pb2.SystemRequest, form: ChatForm) -> None:
    """Set the tools that the model may call: only the tools that the request names."""
    choice, choice_form = request.hints.tool_choice, _choice_of(form)
    request.client_tools.extend(map(_definition, _tools_of(form, choice_form)))
    _set_choice(choice, choice_form)
    if request.client_tools or request.tools:
        return
    if choice.tool_name or choice.mode == message_pb2.TOOL_CHOICE_MODE_REQUIRED:
        raise InvalidRequest(
            "tool_choice asks for a call, but there is no tool to call: send tools, or name tools of the deployment in "
            "pagantic.tools"
        )
    if request.mode in _OFFERING_MODES:
        # A chat without named tools is offered every tool of the deployment, but clients of this API expect no tools.
        choice.mode = message_pb2.TOOL_CHOICE_MODE_NONE
    elif request.mode == execution_pb2.MODE_PLAN and not request.HasField("plan"):
        raise InvalidRequest(
            "pagantic.mode is MODE_PLAN: send a plan, or name the tools of the planner in pagantic.tools"
        )


def _tools_of(form: ChatForm, choice: ToolChoiceForm) -> Sequence[FunctionForm]:
    """Return the functions that the model may call."""
    if not form.tools:
        return form.functions or ()
    numbered = ((tool, f"tools[{index}]") for index, tool in enumerate(form.tools) if not tool.is_left_out)
    tools = [_function_of(tool, place) for tool, place in numbered]
    if choice.type != "allowed_tools" or choice.allowed_tools is None:
        return tools
    names = choice.allowed_tools.function_names
    return [tool for tool in tools if tool.name in names]


def _set_choice(chosen: message_pb2.ToolChoice, choice: ToolChoiceForm) -> None:
    mode = choice.type
    if choice.type == "function" and choice.function is not None:
        chosen.tool_name = choice.function.name
        return
    if choice.type == "allowed_tools" and choice.allowed_tools is not None:
        mode = choice.allowed_tools.mode
    if mode in _CHOICE_MODES:
        chosen.mode = _CHOICE_MODES[mode]
    elif mode in ("function", "allowed_tools"):
        raise InvalidRequest(f"tool_choice.{mode} is missing")
    elif mode:
        raise InvalidRequest(f"tool_choice has the type {mode[:64]!r}: send 'function' or 'allowed_tools'")


def _choice_of(form: ChatForm) -> ToolChoiceForm:
    """Return the tool choice in a uniform form. A mode becomes the type, and a missing choice an empty type."""
    if isinstance(form.tool_choice, ToolChoiceForm):
        return form.tool_choice
    if form.tool_choice is None and isinstance(form.function_call, NamedFunction):
        return ToolChoiceForm(type="function", function=form.function_call)
    return ToolChoiceForm(type=form.tool_choice or form.function_call or "")


def _definition(tool: FunctionForm) -> message_pb2.ToolDefinition:
    parameters = json.dumps(closed_parameters(tool.parameters or {}), ensure_ascii=False)
    return message_pb2.ToolDefinition(name=tool.name, description=tool.description or "", parameters_json=parameters)


def closed_parameters(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema of a function's parameters. If it lists none, the function takes none, as in OpenAI's API.

    For a decoder, a schema without properties would allow an object with any members.
    """
    if parameters.keys() - _LISTING_KEYWORDS or parameters.get("properties") or parameters.get("required"):
        return parameters
    if parameters.get("type", "object") != "object":
        return parameters
    return {**parameters, **_NO_PARAMETERS}


def _function_of(tool: ToolForm, place: str) -> FunctionForm:
    if tool.type != "function" or tool.function is None:
        raise InvalidRequest(f"{place} has the type {tool.type[:64]!r}: only tools of the type 'function' are known")
    return tool.function


def _set_hints(hints: execution_pb2.ExecutionHints, form: AnswerForm) -> None:
    hints.max_tokens = form.max_tokens or hints.max_tokens
    for name in ("temperature", "top_p", "presence_penalty", "frequency_penalty"):
        if (value := getattr(form, name)) is not None:
            setattr(hints, name, value)
    if form.seed is not None:
        hints.seed = form.seed % SEEDS
    hints.stop.extend(_stops_of(form))
    hints.logit_bias.update(_biases(form.logit_bias or {}))


def _stops_of(form: AnswerForm) -> list[str]:
    if isinstance(form.stop, str):
        return [form.stop]
    return [stop for stop in form.stop or () if stop]


def _biases(biases: Mapping[str, float]) -> Iterator[tuple[int, float]]:
    """Yield the non-zero biases, each with its token id."""
    for token, bias in biases.items():
        if not bias:
            continue
        if not _TOKEN.fullmatch(token):
            raise InvalidRequest(f"logit_bias has the token {token[:64]!r}: the keys are ids of tokens")
        yield int(token), bias
