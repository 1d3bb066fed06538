"""Converts messages and responses into items of `/v1/responses`. The module is pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, Literal, NotRequired

from gateway.http.bodies import AnswerShape
from gateway.http.openai.answers import logprobs_of, text_of
from pagantic.common.v1 import message_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.domain.images import image_of

# Maps the prefix of an item's id to the message fields that an item of this kind shows.
_FIELDS: Mapping[str, tuple[Literal["content", "parts", "reasoning", "tool_calls"], ...]] = {
    "msg": ("content", "parts"),
    "fco": ("content",),
    "rs": ("reasoning",),
    "fc": ("tool_calls",),
}
INPUT = "_in"  # Follows a response's id in the ids of its input items, which differ from the ids of its output.
_ROLES = {
    message_pb2.ROLE_SYSTEM: "system",
    message_pb2.ROLE_USER: "user",
    message_pb2.ROLE_ASSISTANT: "assistant",
}


class Item(AnswerShape):
    """A message, a call, the output of a call, or reasoning."""

    id: str
    type: Literal["message", "function_call", "function_call_output", "reasoning"]
    status: str
    role: NotRequired[str]
    content: NotRequired[list[dict[str, Any]]]
    summary: NotRequired[list[dict[str, Any]]]
    call_id: NotRequired[str]
    name: NotRequired[str]
    namespace: NotRequired[str]
    arguments: NotRequired[str]
    output: NotRequired[str]


def output_items(response: execution_pb2.SystemResponse, status: str) -> list[Item]:
    """Return the items of a response. Its message gets the given status."""
    owner = response.request_id
    items: list[Item] = []
    if response.reasoning:
        items.append(reasoning_item(id_of_item("rs", owner), response.reasoning))
    text = text_of(response)
    if text or not response.tool_calls:
        logprobs = (logprobs_of(response) or {"content": []})["content"]
        items.append(message_item(id_of_item("msg", owner), text, status, logprobs))
    items += [call_item(id_of_item("fc", owner, index), call) for index, call in enumerate(response.tool_calls)]
    return items


def id_of_item(prefix: str, owner: str, number: int = 0) -> str:
    """Return the id of a response's item. Calls, and items that are not the first of their kind, are numbered.

    Args:
    prefix: The kind of the item: msg, rs, or fc.
    owner: The request id of the response.
    number: Position of the item among the items of its kind.
    """
    return f"{prefix}_{owner}_{number}" if prefix == "fc" or number else f"{prefix}_{owner}"


def message_item(item_id: str, text: str, status: str, logprobs: Sequence[dict[str, Any]] = ()) -> Item:
    """Return the item for an assistant's message."""
    return {
        "id": item_id,
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": [text_part(text, logprobs)],
    }


def text_part(text: str, logprobs: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """Return the part of a message that contains its text."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}


def reasoning_item(item_id: str, text: str, status: str = "completed") -> Item:
    """Return the item for reasoning."""
    content = [{"type": "reasoning_text", "text": text}]
    return {"id": item_id, "type": "reasoning", "summary": [], "content": content, "status": status}


def call_item(item_id: str, call: message_pb2.ToolCall, status: str = "completed") -> Item:
    """Return the item for a call of a tool that the client runs."""
    return {
        "id": item_id,
        "type": "function_call",
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments_json,
        "status": status,
    }


def items_of_messages(messages: Sequence[message_pb2.Message], owner: str, first_position: int = 0) -> list[Item]:
    """Return the items for messages. Their ids contain the owner and the position of the message."""
    return [
        item
        for position, message in enumerate(messages, start=first_position)
        for item in _items_of(message, f"{owner}_{position}")
    ]


def input_items(request_id: str, messages: Sequence[message_pb2.Message]) -> list[Item]:
    """Return the items of a response's input."""
    return items_of_messages(messages, request_id + INPUT)


def position_of(item_id: str, owner: str) -> int | None:
    """Return the position of the message to which an item belongs, or None if no item of the owner has such an id."""
    match = re.fullmatch(rf"(?:msg|rs|fc|fco)_{re.escape(owner)}_([0-9]{{1,9}})(?:_[0-9a-f]{{8}})?", item_id)
    if match is None:
        return None
    return int(match[1])


def without_item(message: message_pb2.Message, item_id: str) -> message_pb2.Message:
    """Return a message without one of its items. A message that has no items left is `removed`."""
    rest = message_pb2.Message()
    rest.CopyFrom(message)
    fields = _FIELDS[item_id.partition("_")[0]]
    for name in fields:
        rest.ClearField(name)
    if "tool_calls" in fields:
        rest.tool_calls.extend(call for call in message.tool_calls if not item_id.endswith(_ending_of(call)))
    if rest.content or rest.parts or rest.reasoning or rest.tool_calls:
        return rest
    return message_pb2.Message(role=message.role, removed=True)


def _content_of(message: message_pb2.Message) -> list[dict[str, Any]]:
    if message.role == message_pb2.ROLE_ASSISTANT:
        return [text_part(message.content)]
    return list(map(_input_part, message.parts)) or [{"type": "input_text", "text": message.content}]


def _input_part(part: message_pb2.ContentPart) -> dict[str, Any]:
    if part.HasField("image"):
        url = image_of(part.image.media_type, part.image.data).url
        return {"type": "input_image", "image_url": url, "detail": "auto"}
    return {"type": "input_text", "text": part.text}


def _items_of(message: message_pb2.Message, name: str) -> Iterator[Item]:
    if message.removed:
        return
    if message.role == message_pb2.ROLE_TOOL:
        yield {
            "id": f"fco_{name}",
            "type": "function_call_output",
            "call_id": message.tool_call_id,
            "output": message.content,
            "status": "completed",
        }
        return
    if message.reasoning:
        yield reasoning_item(f"rs_{name}", message.reasoning)
    if message.content or message.parts or not (message.tool_calls or message.reasoning):
        role = message.said_as or _ROLES.get(message.role, "user")
        content = _content_of(message)
        yield {"id": f"msg_{name}", "type": "message", "role": role, "status": "completed", "content": content}
    for call in message.tool_calls:
        yield call_item(f"fc_{name}{_ending_of(call)}", call)


def _ending_of(call: message_pb2.ToolCall) -> str:
    """Return the suffix of the id for a call's item. A number would change if another call was deleted."""
    return f"_{sha256(call.id.encode()).hexdigest()[:8]}"
