"""Messages and responses as the items of `/v1/responses`. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gateway.http.bodies import read_count
from gateway.http.openai.answers import logprobs_of, text_of
from pagantic.common.v1 import message_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.domain.errors import InvalidRequest, NotFound

MAX_PAGE = 100
_PAGE = 20
_ROLES = {
    message_pb2.ROLE_SYSTEM: "system",
    message_pb2.ROLE_USER: "user",
    message_pb2.ROLE_ASSISTANT: "assistant",
}


def output_items(response: execution_pb2.SystemResponse, status: str) -> list[dict[str, Any]]:
    """Return the items of a response, whose message has this status."""
    response_id = response.request_id
    items: list[dict[str, Any]] = []
    if response.reasoning:
        items.append(reasoning_item(f"rs_{response_id}", response.reasoning))
    text = text_of(response)
    if text or not response.tool_calls:
        logprobs = (logprobs_of(response) or {"content": []})["content"]
        items.append(message_item(f"msg_{response_id}", text, status, logprobs))
    items += [call_item(f"fc_{response_id}_{index}", call) for index, call in enumerate(response.tool_calls)]
    return items


def message_item(item_id: str, text: str, status: str, logprobs: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """Return the item of an assistant's message; one that has not begun has no content."""
    return {
        "id": item_id,
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": [text_part(text, logprobs)],
    }


def text_part(text: str, logprobs: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """Return the part of a message that is its text."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}


def reasoning_item(item_id: str, text: str, status: str = "completed") -> dict[str, Any]:
    """Return the item of reasoning."""
    content = [{"type": "reasoning_text", "text": text}]
    return {"id": item_id, "type": "reasoning", "summary": [], "content": content, "status": status}


def call_item(item_id: str, call: message_pb2.ToolCall, status: str = "completed") -> dict[str, Any]:
    """Return the item of a call of a tool that the client runs."""
    return {
        "id": item_id,
        "type": "function_call",
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments_json,
        "status": status,
    }


def items_of_messages(
    messages: Sequence[message_pb2.Message], owner: str, first_position: int = 0
) -> list[dict[str, Any]]:
    """Return the items that messages are; their ids have the owner and the position of the message."""
    return [
        item
        for position, message in enumerate(messages, start=first_position)
        for item in _items_of(message, f"{owner}_{position}")
    ]


def _items_of(message: message_pb2.Message, name: str) -> Iterator[dict[str, Any]]:
    if message.role == message_pb2.ROLE_TOOL:
        output = {"call_id": message.tool_call_id, "output": message.content, "status": "completed"}
        yield {"id": f"fco_{name}", "type": "function_call_output", **output}
        return
    if message.reasoning:
        yield reasoning_item(f"rs_{name}", message.reasoning)
    if message.content or not message.tool_calls:
        part = {"type": "input_text", "text": message.content}
        if message.role == message_pb2.ROLE_ASSISTANT:
            part = text_part(message.content)
        role = _ROLES.get(message.role, "user")
        yield {"id": f"msg_{name}", "type": "message", "role": role, "status": "completed", "content": [part]}
    for index, call in enumerate(message.tool_calls):
        yield call_item(f"fc_{name}_{index}", call)


def page_of(items: Sequence[dict[str, Any]], query: Mapping[str, str]) -> dict[str, Any]:
    """Return the page of a list that a query asks for: the newest first if it says nothing else.

    Raises InvalidRequest for a limit or an order that cannot be, NotFound for an unknown item.
    """
    after, order = query.get("after", ""), query.get("order", "")
    if order not in ("", "asc", "desc"):
        raise InvalidRequest(f"order is {order[:32]!r}: send 'asc' or 'desc'")
    size = read_count("limit", query.get("limit", ""), otherwise=_PAGE, most=MAX_PAGE) or _PAGE
    ordered = list(items) if order == "asc" else list(reversed(items))
    start = 0
    if after:
        start = next((index + 1 for index, item in enumerate(ordered) if item["id"] == after), -1)
        if start < 0:
            raise NotFound(f"there is no item {after[:128]!r} in this list")
    return list_of(ordered[start : start + size], has_more=start + size < len(ordered))


def list_of(objects: Sequence[dict[str, Any]], *, has_more: bool = False) -> dict[str, Any]:
    """Return a page of objects."""
    first, last = (objects[0]["id"], objects[-1]["id"]) if objects else ("", "")
    return {"object": "list", "data": list(objects), "first_id": first, "last_id": last, "has_more": has_more}
