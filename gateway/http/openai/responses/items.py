"""Converts messages and responses into items of `/v1/responses`. The module is pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NotRequired

from gateway.http.bodies import AnswerShape
from gateway.http.openai.answers import logprobs_of, text_of
from pagantic.common.v1 import message_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.domain.images import image_of

_ROLES = {
    message_pb2.ROLE_SYSTEM: "system",
    message_pb2.ROLE_USER: "user",
    message_pb2.ROLE_ASSISTANT: "assistant",
}
# The end of the id of an item by its kind: the position of its message, and the number of a call in the message.
_POSITIONS = dict.fromkeys(("msg", "rs", "fco"), re.compile("([0-9]{1,9})")) | {
    "fc": re.compile("([0-9]{1,9})_[0-9]{1,9}")
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
    """Return the items of a response, whose message gets this status."""
    response_id = response.request_id
    items: list[Item] = []
    if response.reasoning:
        items.append(reasoning_item(f"rs_{response_id}", response.reasoning))
    text = text_of(response)
    if text or not response.tool_calls:
        logprobs = (logprobs_of(response) or {"content": []})["content"]
        items.append(message_item(f"msg_{response_id}", text, status, logprobs))
    items += [call_item(f"fc_{response_id}_{index}", call) for index, call in enumerate(response.tool_calls)]
    return items


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


def position_of(item_id: str, owner: str) -> int | None:
    """Return the position of the message to which an item of an owner belongs, or None if the id has another form."""
    kind, _, rest = item_id.partition("_")
    numbers = _POSITIONS[kind].fullmatch(rest.removeprefix(f"{owner}_")) if kind in _POSITIONS else None
    if numbers is None or not rest.startswith(f"{owner}_"):
        return None
    return int(numbers[1])


def _input_part(part: message_pb2.ContentPart) -> dict[str, Any]:
    if part.HasField("image"):
        url = image_of(part.image.media_type, part.image.data).url
        return {"type": "input_image", "image_url": url, "detail": "auto"}
    return {"type": "input_text", "text": part.text}


def _items_of(message: message_pb2.Message, name: str) -> Iterator[Item]:
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
    if message.content or not message.tool_calls:
        parts = list(map(_input_part, message.parts)) or [{"type": "input_text", "text": message.content}]
        if message.role == message_pb2.ROLE_ASSISTANT:
            parts = [text_part(message.content)]
        role = _ROLES.get(message.role, "user")
        yield {"id": f"msg_{name}", "type": "message", "role": role, "status": "completed", "content": parts}
    for index, call in enumerate(message.tool_calls):
        yield call_item(f"fc_{name}_{index}", call)
