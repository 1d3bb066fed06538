"""Reads stored conversations in pages, and finds the stored items and calls to which a request refers."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Collection, Iterator, Sequence
from contextlib import aclosing

from gateway.http.openai.kept import find
from gateway.http.openai.responses.forms import ItemForm
from gateway.http.openai.responses.items import INPUT, Item, input_items, items_of_messages, output_items, position_of
from gateway.http.openai.responses.objects import ID_PREFIX, KIND
from gateway.http.openai.responses.requests import names_of_calls
from pagantic.common.v1 import message_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic.orchestrator.v1 import session_pb2
from pagantic_common.client import AsyncClient
from pagantic_common.domain.defaults import MAX_MESSAGE_BYTES
from pagantic_common.domain.errors import InvalidRequest, NotFound
from pagantic_common.domain.ids import is_id
from pagantic_common.domain.text.json_text import dump_json

MAX_SOURCES = 256  # Maximum number of responses and messages of conversations to read for a request's references.
_REFERENCE = "item_reference"
_CALL, _OUTPUT = "function_call", "function_call_output"
_WINDOW = 32  # Number of messages per read while walking over items.
_MAX_CALL_PAGES = 10
# The possible endings of an item's id after the owner's id: the message's position, the number of a call, or both.
_ENDINGS = [re.compile(form) for form in ("_[0-9]{1,9}_[0-9a-f]{8}$", "_[0-9]{1,9}$", "$")]


async def find_conversation(
    client: AsyncClient, conversation_id: str, *, max_messages: int = 1, before: int = 0
) -> session_pb2.Session:
    """Return a conversation with a page of its messages. Raises NotFound if it does not exist.

    Args:
    client: The client of the caller.
    conversation_id: The id of the conversation.
    max_messages: The largest number of messages. 0 selects the orchestrator's page limit.
    before: The position before which the page ends. 0 is the end of the conversation.
    """
    unknown = NotFound(f"there is no conversation {conversation_id[:128]!r}")
    if not is_id(conversation_id):
        raise unknown
    page = pb.GetSessionRequest(session_id=conversation_id, max_messages=max_messages, before_position=before)
    try:
        return await client.get_session_page(page)
    except NotFound:
        raise unknown from None


async def find_item(client: AsyncClient, conversation_id: str, item_id: str) -> tuple[int, message_pb2.Message, Item]:
    """Return an item of a conversation, its message, and the message's position.

    Raises NotFound if the conversation or the item does not exist.
    """
    unknown = NotFound(f"there is no item {item_id[:128]!r} in this conversation")
    if (position := position_of(item_id, conversation_id)) is None:
        await find_conversation(client, conversation_id)
        raise unknown
    messages = await read_messages(client, conversation_id, position, position + 1)
    items = items_of_messages(messages, conversation_id, position)
    item = next((item for item in items if item["id"] == item_id), None)
    if item is None:
        raise unknown
    return position, messages[0], item


async def walk_items(
    client: AsyncClient, conversation_id: str, start: int, end: int, *, is_ascending: bool
) -> AsyncGenerator[tuple[Item, int], None]:
    """Yield the items of a conversation's messages from `start` to before `end`, or in reverse order.

    Each item comes with its share of its message's bytes. At most a page of the orchestrator is held at a time.
    """
    step = 1 if is_ascending else -1
    async with aclosing(_walk_pages(client, conversation_id, start, end, is_ascending=is_ascending)) as pages:
        async for page in pages:
            for item in _sized_items(page, conversation_id, step):
                yield item


def _sized_items(page: session_pb2.Session, conversation_id: str, step: int) -> Iterator[tuple[Item, int]]:
    for position, message in list(enumerate(page.messages, start=page.first_position))[::step]:
        items = items_of_messages([message], conversation_id, position)
        for item in items[::step]:
            yield item, message.ByteSize() // len(items)


async def _walk_pages(
    client: AsyncClient, conversation_id: str, start: int, end: int, *, is_ascending: bool
) -> AsyncGenerator[session_pb2.Session, None]:
    """Yield a conversation in pages that cover the messages from `start` to before `end`, in either order."""
    window = _WINDOW
    while start < end:
        first, last = (start, min(start + window, end)) if is_ascending else (max(start, end - window), end)
        page = await find_conversation(client, conversation_id, max_messages=last - first, before=last)
        if page.first_position + len(page.messages) < last:  # The conversation ends before `last`.
            return
        if not is_ascending:
            yield page
            end = page.first_position
        elif page.first_position == first:
            yield page
            start = last
        else:  # The window does not fit into a page. The next window has the size of this page.
            window = max(1, len(page.messages))


async def read_messages(
    client: AsyncClient, conversation_id: str, start: int, end: int
) -> Sequence[message_pb2.Message]:
    """Return the messages of a conversation from `start` to before `end`, in as many calls as needed.

    Raises NotFound if the conversation does not exist.
    """
    messages: list[message_pb2.Message] = []
    while start < end:
        page = await find_conversation(client, conversation_id, max_messages=end - start, before=end)
        if page.first_position + len(page.messages) < end:  # The conversation ends before `end`.
            break
        messages[:0] = page.messages
        end = page.first_position
    return messages


async def read_conversation(client: AsyncClient, conversation_id: str) -> list[message_pb2.Message]:
    """Return all messages of a conversation except removed messages.

    Raises NotFound if the conversation does not exist, or InvalidRequest if its messages do not fit into one call.
    """
    pages: list[Sequence[message_pb2.Message]] = []
    size_bytes = before = 0
    while not pages or before:
        page = await find_conversation(client, conversation_id, max_messages=0, before=before)
        pages.append(page.messages)
        size_bytes += page.ByteSize()
        if size_bytes > MAX_MESSAGE_BYTES:
            raise InvalidRequest(
                f"conversation {conversation_id!r} has more than {MAX_MESSAGE_BYTES} bytes: it is too long"
            )
        before = page.first_position
    return [message for messages in reversed(pages) for message in messages if not message.removed]


async def find_calls(client: AsyncClient, conversation_id: str, items: Sequence[ItemForm]) -> list[message_pb2.Message]:
    """Return the messages whose calls the items answer, from a conversation's newest messages.

    Raises NotFound if the conversation does not exist.
    """
    wanted = _earlier_calls(items)
    messages: list[message_pb2.Message] = []
    end, pages = (await find_conversation(client, conversation_id)).message_count, 0
    while wanted and end and pages < _MAX_CALL_PAGES:
        page = await find_conversation(client, conversation_id, max_messages=0, before=end)
        calling = [message for message in page.messages if wanted.intersection(call.id for call in message.tool_calls)]
        messages += calling
        wanted.difference_update(names_of_calls(calling))
        end, pages = page.first_position, pages + 1
    return messages


def _earlier_calls(items: Sequence[ItemForm]) -> set[str | None]:
    """Return the ids of the calls that the items answer but do not contain."""
    contained = {item.call_id for item in items if item.type == _CALL}
    return {item.call_id for item in items if item.type == _OUTPUT} - contained


def has_references(items: Sequence[ItemForm]) -> bool:
    """Return whether any item is a reference to a stored item."""
    return any(item.type == _REFERENCE for item in items)


async def resolve_references(client: AsyncClient, items: Sequence[ItemForm], place: str) -> list[ItemForm]:
    """Return the items, with stored items in place of references.

    Raises InvalidRequest for a reference to an unknown item, for references to too many responses and messages, and for
    items with more bytes than the orchestrator accepts. An item counts once for each reference.
    """
    ids = dict.fromkeys(item.id or "" for item in items if item.type == _REFERENCE)
    stored = await _find_stored(client, ids, place)
    resolved: list[ItemForm] = []
    size_bytes = 0
    for index, item in enumerate(items):
        if item.type != _REFERENCE:
            resolved.append(item)
            continue
        item_id = item.id or ""
        if item_id not in stored:
            raise InvalidRequest(
                f"{place}[{index}].id is {item_id[:128]!r}: no stored item has this id, so send the item"
            )
        size_bytes = _sum_bytes(size_bytes, [stored[item_id]], place)
        resolved.append(ItemForm.model_validate(stored[item_id]))
    return resolved


async def _find_stored(client: AsyncClient, ids: Collection[str], place: str) -> dict[str, Item]:
    """Return the stored items with these ids, by id. A response that contains several of the items is read once."""
    stored: dict[str, Item] = {}
    size_bytes = 0
    sources: set[tuple[str, int | None]] = set()  # The sources that were read.
    for item_id, source in ((name, source) for name in ids for source in _sources_of(name)):
        if item_id in stored or source in sources:
            continue
        sources.add(source)
        if len(sources) > MAX_SOURCES:
            raise InvalidRequest(
                f"{place} refers to items of more than {MAX_SOURCES} responses and messages: send "
                "previous_response_id, or the items themselves"
            )
        items = [item for item in await _items_of(client, *source) if item["id"] in ids]
        size_bytes = _sum_bytes(size_bytes, items, place)
        stored |= {item["id"]: item for item in items}
    return stored


def _sum_bytes(size_bytes: int, items: Sequence[Item], place: str) -> int:
    """Add the sizes of stored items to a total. Raises InvalidRequest if the total is too large for a request."""
    size_bytes += sum(len(dump_json(item).encode(errors="replace")) for item in items)
    if size_bytes > MAX_MESSAGE_BYTES:
        raise InvalidRequest(f"{place} refers to items of more than {MAX_MESSAGE_BYTES} bytes: refer to fewer")
    return size_bytes


async def _items_of(client: AsyncClient, owner: str, position: int | None) -> list[Item]:
    """Return the items of a response or, given a position, of a conversation's message; empty for an unknown owner."""
    if not is_id(owner):
        return []
    try:
        if position is not None:
            messages = await read_messages(client, owner, position, position + 1)
            return items_of_messages(messages, owner, position)
        execution = await find(client, owner, ID_PREFIX, KIND)
    except NotFound:
        return []
    items = input_items(execution.request_id, execution.request.messages)
    if execution.HasField("response"):
        items += output_items(execution.response, "completed")
    return items


def _sources_of(item_id: str) -> Iterator[tuple[str, int | None]]:
    """Yield the responses that may contain an item, and the conversations with the position of the item's message.

    The owner's id is the part of the item's id before a possible ending.
    """
    _, _, name = item_id.partition("_")
    for ending in _ENDINGS:
        if match := ending.search(name):
            owner = name[: match.start()].removesuffix(INPUT)
            yield owner, None
            yield owner, position_of(item_id, owner)
