"""Converts a request to `/v1/responses` into the form of `/v1/chat/completions`, which is then translated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from gateway.http.openai.forms import MAX_NOTE_CHARS, ChatForm, ContentPart
from gateway.http.openai.kept import keep
from gateway.http.openai.requests import closed_parameters, messages_of, request_of
from gateway.http.openai.responses.forms import (
    LOGPROBS,
    NAMESPACE,
    ItemForm,
    NamedTool,
    PromptForm,
    ResponseForm,
    ResponseToolForm,
    ToolChoice,
)
from gateway.http.openai.responses.objects import AS_SENT, KIND, ResponseHead
from gateway.http.openai.responses.summaries import summary_message
from pagantic.common.v1 import message_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.domain.errors import InvalidRequest

MAX_NAME_CHARS = 64
_IMAGE = "input_image"
_TEXTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")


def system_request_of(
    form: ResponseForm, alias: str, call_s: float, earlier: Sequence[message_pb2.Message], *, stored: bool = False
) -> execution_pb2.SystemRequest:
    """Return the request for a form. Raises InvalidRequest if the form uses an unsupported feature.

    Args:
    form: The client's form.
    alias: The alias of the model that the form names.
    call_s: Maximum duration of the request, unless the request sets a shorter one.
    earlier: The earlier messages.
    stored: Whether the earlier messages are already in a session, so that they are not sent again.
    """
    if form.previous_response_id and form.conversation_id:
        raise InvalidRequest("previous_response_id and conversation are both set: send one of them")
    request = request_of(_chat_form(_without_namespaces(form)), alias, call_s, names_of_calls(earlier))
    if form.instructions:
        request.prompt.text = form.instructions
    if form.prompt is not None:
        _set_template(request, form.prompt)
    if form.conversation_id:
        request.session_id = form.conversation_id
        request.mode = execution_pb2.MODE_CHAT  # Other modes do not keep a conversation.
    if not stored:
        messages = [*earlier, *request.messages]
        request.ClearField("messages")
        request.messages.extend(messages)
    request.background = bool(form.background)
    return request


def messages_of_items(items: Sequence[ItemForm], names: Mapping[str, str], place: str) -> list[message_pb2.Message]:
    """Return the messages for items. Raises InvalidRequest with the position of an invalid item."""
    messages = _messages(items, place)
    if not messages:
        return []
    return messages_of(ChatForm.model_validate({"messages": messages}).messages, names)


def names_of_calls(messages: Sequence[message_pb2.Message]) -> dict[str, str]:
    """Return the names of the called tools by the ids of the calls."""
    return {call.id: call.name for message in messages for call in message.tool_calls}


def _without_namespaces(form: ResponseForm) -> ResponseForm:
    """Return the form with plain functions as its only tools. Calls of functions in namespaces become plain calls."""
    functions = _functions_of(form)
    names = {(namespace, function.name): name for name, (namespace, function) in functions.items() if namespace}
    changes: dict[str, Any] = {
        "tools": [function.model_copy(update={"name": name}) for name, (_, function) in functions.items()]
    }
    if names and isinstance(form.input, list):
        changes["input"] = [
            item.model_copy(update={"name": names.get((item.namespace or "", item.name or ""), item.name)})
            for item in form.input
        ]
    return form.model_copy(update=changes)


def _functions_of(form: ResponseForm) -> dict[str, tuple[str, ResponseToolForm]]:
    """Return the functions by the names that the model sees, each with its namespace or an empty string.

    The model sees no namespaces. If the name of a function is taken, the name of its namespace is put before it.
    """
    given = list(_named_functions(form.tools or (), "tools", ""))
    functions: dict[str, tuple[str, ResponseToolForm]] = {}
    taken = {function.name for namespace, function in given if not namespace}
    for namespace, function in given:
        name = function.name
        if namespace and name in taken:
            name = f"{namespace}__{name}"[:MAX_NAME_CHARS]
        if name in functions:
            raise InvalidRequest(f"tools has the name {name[:MAX_NAME_CHARS]!r} twice: names must differ")
        taken.add(name)
        functions[name] = (namespace, function)
    return functions


def _named_functions(
    tools: Sequence[ResponseToolForm], place: str, namespace: str
) -> Iterator[tuple[str, ResponseToolForm]]:
    """Yield functions with their namespaces. Raises InvalidRequest for a tool of an unknown type."""
    for index, tool in enumerate(tools):
        where = f"{place}[{index}]"
        if tool.type == "function":
            yield namespace, tool
        elif tool.type == NAMESPACE and not namespace:
            yield from _named_functions(tool.tools or (), f"{where}.tools", tool.name or _missing(where, "name"))
        elif not tool.is_left_out:
            raise InvalidRequest(
                f"{where} has the type {tool.type[:64]!r}: only functions are known; name tools of the deployment in "
                "pagantic.tools"
            )


def _chat_form(form: ResponseForm) -> ChatForm:
    text_format = form.text.format if form.text is not None else None
    fields: dict[str, Any] = {
        "model": form.model,
        "messages": _input_messages(form),
        "max_completion_tokens": form.max_output_tokens,
        "temperature": form.temperature,
        "top_p": form.top_p,
        "pagantic": form.pagantic,
        "tools": [_tool(tool) for tool in form.tools or ()],
        "tool_choice": _choice(form.tool_choice),
    }
    if text_format is not None:
        schema = {"name": text_format.name, "schema": text_format.schema_}
        fields["response_format"] = {"type": text_format.type, "json_schema": schema}
    if form.reasoning is not None:
        fields["reasoning_effort"] = form.reasoning.effort
    if form.top_logprobs or LOGPROBS in (form.include or ()):
        fields |= {"logprobs": True, "top_logprobs": form.top_logprobs}
    return ChatForm.model_validate(fields)


def _input_messages(form: ResponseForm) -> list[dict[str, Any]]:
    items = [ItemForm(role="user", content=form.input)] if isinstance(form.input, str) else form.input
    messages = _messages(items or (), "input")
    if not messages:
        raise InvalidRequest("input is missing: send a text, or a list of items that ends with the user's message")
    return messages


def _messages(items: Sequence[ItemForm], place: str) -> list[dict[str, Any]]:
    """Return messages in the form of chats, in which calls and reasoning are parts of the assistant's message."""
    messages: list[dict[str, Any]] = []
    for index, item in enumerate(items):
        where = f"{place}[{index}]"
        add = _ADDING.get(item.type)
        if add is None:
            raise InvalidRequest(f"{where} has the type {item.type[:64]!r}: send {', '.join(_ADDING)}")
        add(messages, item, where)
    return _joined(messages)


def _add_message(messages: list[dict[str, Any]], item: ItemForm, where: str) -> None:
    messages.append({"role": item.role or _missing(where, "role"), "content": _content(item.content, where)})


def _add_call(messages: list[dict[str, Any]], item: ItemForm, where: str) -> None:
    function = {"name": item.name or _missing(where, "name"), "arguments": item.arguments or "{}"}
    call = {"id": item.call_id or _missing(where, "call_id"), "type": "function", "function": function}
    _assistant(messages).setdefault("tool_calls", []).append(call)


def _add_output(messages: list[dict[str, Any]], item: ItemForm, where: str) -> None:
    call_id = item.call_id or _missing(where, "call_id")
    messages.append({"role": "tool", "tool_call_id": call_id, "content": _text(item.output, f"{where}.output")})


def _add_reasoning(messages: list[dict[str, Any]], item: ItemForm, where: str) -> None:
    if text := _text(item.content or item.summary or "", where):
        messages.append({"role": "assistant", "content": None, "reasoning_content": text})


def _add_summary(messages: list[dict[str, Any]], item: ItemForm, where: str) -> None:
    messages.append(summary_message(item.encrypted_content or _missing(where, "encrypted_content"), where))


_ADDING: Mapping[str, Callable[[list[dict[str, Any]], ItemForm, str], None]] = MappingProxyType(
    {
        "message": _add_message,
        "function_call": _add_call,
        "function_call_output": _add_output,
        "reasoning": _add_reasoning,
        "compaction": _add_summary,
    }
)


def _assistant(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the assistant's message that a call belongs to."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    return messages[-1]


def _joined(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge each reasoning message into the assistant's message that follows, and return the messages."""
    joined: list[dict[str, Any]] = []
    for message in messages:
        last = joined[-1] if joined else {}
        is_thought = last.get("reasoning_content") is not None and last["content"] is None and "tool_calls" not in last
        if is_thought and message["role"] == "assistant" and "reasoning_content" not in message:
            joined[-1] = {**message, "reasoning_content": last["reasoning_content"]}
        else:
            joined.append(message)
    return joined


def _content(content: str | Sequence[ContentPart] | None, where: str) -> str | list[dict[str, Any]]:
    """Return the content of a message in the form of chats: a text, or parts if the content has an image."""
    if isinstance(content, str) or not any(part.type == _IMAGE for part in content or ()):
        return _text(content, where)
    return [_chat_part(part, f"{where}[{index}]") for index, part in enumerate(content or ())]


def _chat_part(part: ContentPart, where: str) -> dict[str, Any]:
    if part.type == _IMAGE:
        return {"type": "image_url", "image_url": part.data_url}
    return {"type": "text", "text": _part(part, where)}


def _text(content: str | Sequence[ContentPart] | None, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(_part(part, f"{where}[{index}]") for index, part in enumerate(content))


def _part(part: ContentPart, where: str) -> str:
    text = part.text
    if part.type == "refusal":
        text = part.refusal
    if part.type not in (*_TEXTS, "refusal") or text is None:
        raise InvalidRequest(
            f"{where} has the type {part.type[:64]!r}: models here read the types 'input_text' and 'input_image'"
        )
    return text


def _tool(tool: ResponseToolForm) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def _choice(choice: str | ToolChoice | None) -> Any:
    if not isinstance(choice, ToolChoice):
        return choice
    if choice.type == "allowed_tools":
        tools = [_allowed(tool) for tool in choice.tools or ()]
        return {"type": choice.type, "allowed_tools": {"mode": choice.mode or "auto", "tools": tools}}
    if choice.type != "function":
        raise InvalidRequest(f"tool_choice has the type {choice.type[:64]!r}: only a function can be demanded")
    return {"type": choice.type, "function": {"name": choice.name or _missing("tool_choice", "name")}}


def _allowed(tool: NamedTool) -> dict[str, Any]:
    if tool.type != "function":
        return {"type": tool.type}
    return {"type": tool.type, "function": {"name": tool.name}}


def _set_template(request: execution_pb2.SystemRequest, prompt: PromptForm) -> None:
    if request.prompt.WhichOneof("source"):
        raise InvalidRequest("prompt and instructions are both set: a template has the instructions")
    request.prompt.template.name = prompt.id
    for name, value in (prompt.variables or {}).items():
        text = value if isinstance(value, str) else _part(value, f"prompt.variables.{name[:64]}")
        request.prompt.template.variables[name] = text


def _missing(where: str, field: str) -> str:
    raise InvalidRequest(f"{where}.{field} is missing")


def head_of(form: ResponseForm, sent: execution_pb2.SystemRequest, created_s: int, model: str = "") -> ResponseHead:
    """Return the head of the response. If the response is stored, the request keeps the data that the head needs.

    Args:
    form: The client's form.
    sent: The request for the orchestrator.
    created_s: The time of the request, in seconds.
    model: The name of the model that answers; an empty name selects the name that the client sent.
    """
    echo = form.model_dump(mode="json", by_alias=True, include=set(_REPEATED), exclude_none=True)
    echo |= {name: value for name, value in (form.model_extra or {}).items() if name in _REPEATED_UNREAD}
    echo |= {"created_at": created_s, "model": model or form.model}
    if form.conversation_id:
        echo["conversation"] = {"id": form.conversation_id}
    if not echo.get("reasoning"):
        echo.pop("reasoning", None)
    echo[AS_SENT] = _as_sent(form)
    if form.is_stored:
        keep(sent, KIND, echo)
    return ResponseHead(sent, echo, tuple(form.ignored))


def _as_sent(form: ResponseForm) -> dict[str, Any]:
    """Return the parts of the answer's format and of the tools that the orchestrator's request lacks.

    Schemas are omitted, because the request contains them and metadata must be short.
    """
    text_format = form.text.format if form.text is not None else None
    parts: dict[str, Any] = {
        "functions": {name: _function_as_sent(*named) for name, named in _functions_of(form).items()},
        "namespaces": {
            tool.name: (tool.description or "")[:MAX_NOTE_CHARS] for tool in form.tools or () if tool.type == NAMESPACE
        },
        "format": text_format and text_format.model_dump(exclude={"schema_"}, exclude_unset=True),
    }
    return {name: part for name, part in parts.items() if part}


def _function_as_sent(namespace: str, function: ResponseToolForm) -> dict[str, Any]:
    sent: dict[str, Any] = {"name": function.name, "namespace": namespace, "strict": function.strict}
    if closed_parameters(function.parameters or {}) != function.parameters:
        sent["parameters"] = function.parameters
    return sent


# The parts of the client's request that a response repeats but the orchestrator's request has no field for.
_REPEATED = (
    *("metadata", "previous_response_id", "temperature", "top_p", "top_logprobs", "max_output_tokens"),
    *("reasoning", "tool_choice", "background", "store"),
)
_REPEATED_UNREAD = ("parallel_tool_calls", "truncation", "user", "safety_identifier", "prompt_cache_key")
