"""Converts a request to `/v1/messages` into the form of `/v1/chat/completions`, which is then translated."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from gateway.http.anthropic.forms import BlockForm, ChoiceForm, ClientToolForm, MessagesForm, TextBlock, ThinkingForm
from gateway.http.openai.forms import ChatForm, read_form
from gateway.http.openai.requests import request_of
from pagantic.inference.v1 import generation_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.domain.errors import InvalidRequest

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_ASSISTANT_BLOCKS = ("text", "thinking", "tool_use")
_USER_BLOCKS = ("text", "image", "tool_result")


def system_request_of(form: MessagesForm, alias: str, call_s: float) -> execution_pb2.SystemRequest:
    """Return the request for a form. Raises InvalidRequest if the form uses an unsupported feature.

    Args:
    form: The client's form.
    alias: The alias of the model that the form names.
    call_s: Maximum duration of the request, unless the request sets a shorter one.
    """
    if form.messages[-1].role == "assistant":
        place = f"messages[{len(form.messages) - 1}]"
        raise InvalidRequest(
            f"{place}.role is 'assistant': models here do not continue a given answer, so end with a user's message"
        )
    if form.thread is not None:
        # Clients of this API that keep messages in threads send all messages again after an error with these details.
        raise InvalidRequest(
            "thread is set: messages are not kept here, so leave thread out and send all messages",
            details={"error_code": "thread_unsupported_request"},
        )
    request = request_of(read_form(_chat_fields(form), ChatForm), alias, call_s)
    if form.top_k is not None:
        request.hints.top_k = form.top_k
    if form.thinking is not None:
        _set_reasoning(request.hints.reasoning, form.thinking)
    if request.keep_request:  # The orchestrator keeps metadata only together with a kept request.
        request.metadata.update(form.metadata or {})
    return request


def _chat_fields(form: MessagesForm) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "model": form.model,
        "messages": list(_messages(form)),
        "max_tokens": form.max_tokens,
        "temperature": form.temperature,
        "top_p": form.top_p,
        "stop": form.stop_sequences,
        "pagantic": form.pagantic,
        "tools": [
            _tool(tool, f"tools[{index}]") for index, tool in enumerate(form.tools or ()) if not tool.is_left_out
        ],
        "tool_choice": _choice(form.tool_choice),
    }
    if form.output_config is not None and form.output_config.format is not None:
        schema = {"name": "answer", "schema": form.output_config.format.schema_}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    return fields


def _messages(form: MessagesForm) -> Iterator[dict[str, Any]]:
    """Yield messages in the chat format, in which each tool result is a separate message."""
    if form.system:
        yield {"role": "system", "content": _text(form.system, "system")}
    for index, message in enumerate(form.messages):
        place = f"messages[{index}].content"
        if isinstance(message.content, str):
            yield {"role": message.role, "content": message.content}
        elif message.role == "system":
            yield {"role": message.role, "content": _text(message.content, place)}
        elif message.role == "assistant":
            yield _assistant_message(message.content, place)
        else:
            yield from _user_messages(message.content, place)


def _assistant_message(blocks: Sequence[BlockForm], place: str) -> dict[str, Any]:
    """Convert the blocks of an assistant's message into a message in the chat format."""
    message: dict[str, Any] = {"role": "assistant", "content": "", "reasoning_content": "", "tool_calls": []}
    for index, block in enumerate(blocks):
        where = f"{place}[{index}]"
        _check_type(block, where, _ASSISTANT_BLOCKS)
        if block.type == "text":
            message["content"] += _present(block.text, f"{where}.text")
        elif block.type == "thinking":
            message["reasoning_content"] += _present(block.thinking, f"{where}.thinking")
        else:
            message["tool_calls"].append(_call(block, where))
    return message


def _user_messages(blocks: Sequence[BlockForm], place: str) -> Iterator[dict[str, Any]]:
    """Yield the messages of the user and the tools in the order of their blocks."""
    parts: list[dict[str, Any]] = []
    for index, block in enumerate(blocks):
        where = f"{place}[{index}]"
        _check_type(block, where, _USER_BLOCKS)
        if block.type != "tool_result":
            parts.append(_part(block, where))
            continue
        if _has_content(parts):
            yield {"role": "user", "content": parts}
        parts = []
        call_id = _present(block.tool_use_id, f"{where}.tool_use_id")
        content = _text(block.content or "", f"{where}.content")
        yield {"role": "tool", "tool_call_id": call_id, "content": content}
    has_results = any(block.type == "tool_result" for block in blocks)
    if _has_content(parts) or not has_results:
        yield {"role": "user", "content": parts}


def _part(block: BlockForm, where: str) -> dict[str, Any]:
    if block.type == "text":
        return {"type": "text", "text": _present(block.text, f"{where}.text")}
    if block.source is None or block.source.type != "base64":
        raise InvalidRequest(
            f"{where}.source is not of the type 'base64': addresses and files are not fetched, so send the image itself"
        )
    return {"type": "image_url", "image_url": f"data:{block.source.media_type};base64,{block.source.data}"}


def _has_content(parts: Sequence[dict[str, Any]]) -> bool:
    return any(part.get("text") or "image_url" in part for part in parts)


def _call(block: BlockForm, where: str) -> dict[str, Any]:
    arguments = json.dumps(block.input or {}, ensure_ascii=False)
    function = {"name": _present(block.name, f"{where}.name"), "arguments": arguments}
    return {"id": _present(block.id, f"{where}.id"), "type": "function", "function": function}


def _text(content: str | Sequence[TextBlock | BlockForm], place: str) -> str:
    if isinstance(content, str):
        return content
    for index, block in enumerate(content):
        _check_type(block, f"{place}[{index}]", ("text",))
    return "".join(_present(block.text, f"{place}[{index}].text") for index, block in enumerate(content))


def _tool(tool: ClientToolForm, place: str) -> dict[str, Any]:
    if tool.type not in (None, "custom"):
        raise InvalidRequest(
            f"{place} has the type {tool.type[:64]!r}: only tools that the caller runs are known; name tools of the "
            "deployment in pagantic.tools"
        )
    name = _present(tool.name or None, f"{place}.name")
    function = {"name": name, "description": tool.description, "parameters": tool.input_schema}
    return {"type": "function", "function": function}


def _choice(choice: ChoiceForm | None) -> Any:
    if choice is None:
        return None
    if choice.type == "tool":
        return {"type": "function", "function": {"name": _present(choice.name, "tool_choice.name")}}
    return _CHOICES[choice.type]


def _set_reasoning(reasoning: generation_pb2.Reasoning, thinking: ThinkingForm) -> None:
    if thinking.type == "disabled":
        reasoning.mode = generation_pb2.REASONING_MODE_OFF
    elif thinking.type == "enabled":
        reasoning.mode = generation_pb2.REASONING_MODE_ON
        reasoning.max_tokens = thinking.budget_tokens or reasoning.max_tokens


def _check_type(block: BlockForm | TextBlock, where: str, known: Sequence[str]) -> None:
    if block.type not in known:
        raise InvalidRequest(f"{where} has the type {block.type[:64]!r}: models here read {', '.join(known)}")


def _present(value: str | None, place: str) -> str:
    if value is None:
        raise InvalidRequest(f"{place} is missing")
    return value
