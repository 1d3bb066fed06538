"""`/v1/conversations`: the conversations stored in the orchestrator, with their messages as items."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Literal, NotRequired

from starlette.requests import Request
from starlette.responses import JSONResponse

from gateway.http.bodies import AnswerShape, read_object
from gateway.http.openai.forms import IgnoredFields, naming_ignored, read_form
from gateway.http.openai.kept import notes_of
from gateway.http.openai.pages import Deleted, deleted, list_of, page_parameters, read_page, unknown_item
from gateway.http.openai.responses.forms import ConversationForm, ConversationUpdateForm, ItemsForm
from gateway.http.openai.responses.items import Item, items_of_messages, position_of
from gateway.http.openai.responses.requests import messages_of_items, names_of_calls
from gateway.http.openai.responses.stored import ItemList
from gateway.http.operations import OPENAI, Operation
from gateway.http.streams.running import Answer
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic.orchestrator.v1 import session_pb2
from pagantic_common.client import AsyncClient
from pagantic_common.domain.errors import NotFound, Unsupported
from pagantic_common.domain.ids import is_id

ID_PREFIX = "conv_"
NOTES = "openai.metadata"
# The number of the newest messages among which the call is found that a new output answers.
MAX_RECENT = 200
_ONE = "/v1/conversations/{conversation_id}"


class Conversation(AnswerShape):
    """A conversation that responses can continue."""

    id: str
    object: Literal["conversation"]
    created_at: int
    metadata: dict[str, str]
    pagantic: NotRequired[IgnoredFields]


def conversation_operations() -> list[Operation]:
    """Return the operations of conversations."""
    return [
        Operation(
            OPENAI,
            "POST /v1/conversations",
            _create,
            "createConversation",
            ConversationForm,
            Conversation,
            may_be_empty=True,
            makes="conversation_id",
        ),
        Operation(OPENAI, f"GET {_ONE}", _retrieve, "getConversation", answer=Conversation),
        Operation(OPENAI, f"POST {_ONE}", _update, "updateConversation", ConversationUpdateForm, Conversation),
        Operation(OPENAI, f"DELETE {_ONE}", _delete, "deleteConversation", answer=Deleted),
        Operation(
            OPENAI,
            f"GET {_ONE}/items",
            _items,
            "listConversationItems",
            answer=ItemList,
            parameters=page_parameters("desc"),
        ),
        Operation(OPENAI, f"POST {_ONE}/items", _add, "addConversationItems", ItemsForm, ItemList),
        Operation(OPENAI, f"GET {_ONE}/items/{{item_id}}", _item, "getConversationItem", answer=Item),
        Operation(OPENAI, f"DELETE {_ONE}/items/{{item_id}}", _remove, "deleteConversationItem", answer=Deleted),
    ]


async def _create(client: AsyncClient, _request: Request, body: bytes) -> Answer:
    """Make a conversation."""
    form = read_form(read_object(body or b"{}"), ConversationForm)
    messages = messages_of_items(form.items or (), {}, "items")
    name = f"{ID_PREFIX}{uuid.uuid4().hex}"
    made = await client.update_session(name, {NOTES: form.metadata or {}}, appended=messages)
    return JSONResponse(naming_ignored(_object(made), form))


async def _retrieve(client: AsyncClient, request: Request, _body: bytes) -> Answer:
    """Get a conversation."""
    return JSONResponse(_object(await _find(client, request)))


async def _update(client: AsyncClient, request: Request, body: bytes) -> Answer:
    """Change the metadata of a conversation."""
    form = read_form(read_object(body), ConversationUpdateForm)
    session = await _find(client, request)
    changed = await client.update_session(session.session_id, {NOTES: form.metadata or {}})
    return JSONResponse(naming_ignored(_object(changed), form))


async def _delete(client: AsyncClient, request: Request, _body: bytes) -> Answer:
    """Delete a conversation."""
    session = await _find(client, request)
    await client.delete_session(session.session_id)
    return JSONResponse(deleted(session.session_id, "conversation.deleted"))


async def _items(client: AsyncClient, request: Request, _body: bytes) -> Answer:
    """List the items of a conversation."""
    name = request.path_params["conversation_id"]
    after, order, size = read_page(request.query_params)
    position = position_of(after, name) if after else None
    if after and position is None:
        raise unknown_item(after)
    async with aclosing(_items_from(client, request, order, position, size + 1)) as listed:
        if after:
            await _skip(listed, after, name)
        items = []
        async for item in listed:
            items.append(item)
            if len(items) > size:
                break
    return JSONResponse(list_of(items[:size], has_more=len(items) > size))


async def _skip(listed: AsyncGenerator[Item, None], last_id: str, conversation_id: str) -> None:
    """Read items of a message up to an item. Raises NotFound if the message does not have it."""
    async for item in listed:
        if item["id"] == last_id:
            return
        if position_of(item["id"], conversation_id) != position_of(last_id, conversation_id):
            break
    raise unknown_item(last_id)


async def _items_from(
    client: AsyncClient, request: Request, order: str, position: int | None, count: int
) -> AsyncGenerator[Item, None]:
    """Yield the items of a conversation in an order, `count` messages at a time, from the message at a position on."""
    if order == "asc":
        start, session = position or 0, None
        while session is None or start < session.message_count:
            end = start + count
            session = await _messages_between(client, request, start, end)
            for item in _items_of(session):
                yield item
            start = end
        return
    before = 0 if position is None else position + 1
    while True:
        session = await _find(client, request, max_messages=count, before=before)
        for item in reversed(_items_of(session)):
            yield item
        before = session.first_position
        if not before:
            return


async def _messages_between(client: AsyncClient, request: Request, start: int, end: int) -> session_pb2.Session:
    """Return a conversation with the messages from one position to another. Large messages come in several pages."""
    pages = [await _find(client, request, max_messages=end - start, before=end)]
    while pages[-1].first_position > start:
        first = pages[-1].first_position
        pages.append(await _find(client, request, max_messages=first - start, before=first))
    session = pages.pop()
    for page in reversed(pages):
        session.messages.extend(page.messages)
    # Near the end of a conversation, the page begins before the start.
    del session.messages[: start - session.first_position]
    session.first_position = start
    return session


async def _add(client: AsyncClient, request: Request, body: bytes) -> Answer:
    """Add items to a conversation."""
    form = read_form(read_object(body), ItemsForm)
    session = await _find(client, request, max_messages=MAX_RECENT)
    messages = messages_of_items(form.items, names_of_calls(session.messages), "items")
    changed = await client.update_session(session.session_id, {}, appended=messages)
    first = changed.message_count - len(messages)
    added = list_of(items_of_messages(messages, session.session_id, first))
    return JSONResponse(naming_ignored(added, form))


async def _item(client: AsyncClient, request: Request, _body: bytes) -> Answer:
    """Get an item of a conversation."""
    name = request.path_params["item_id"]
    position = position_of(name, request.path_params["conversation_id"])
    session = await _find(client, request, before=0 if position is None else position + 1)
    for item in _items_of(session):
        if item["id"] == name:
            return JSONResponse(item)
    raise NotFound(f"there is no item {name[:128]!r} in this conversation")


async def _remove(client: AsyncClient, request: Request, _body: bytes) -> Answer:
    """Reject the deletion, because items of a conversation cannot be deleted."""
    await _item(client, request, b"")
    raise Unsupported("items of a conversation cannot be deleted: delete the conversation, and make another one")


async def _find(
    client: AsyncClient, request: Request, *, max_messages: int = 1, before: int = 0
) -> session_pb2.Session:
    """Return a conversation with its newest messages before a position, where 0 is the end.

    Raises NotFound if it does not exist.
    """
    name = request.path_params["conversation_id"]
    unknown = NotFound(f"there is no conversation {name[:128]!r}")
    if not is_id(name):
        raise unknown
    try:
        return await client.get_session_page(
            pb.GetSessionRequest(session_id=name, max_messages=max_messages, before_position=before)
        )
    except NotFound:
        raise unknown from None


def _object(session: session_pb2.Session) -> Conversation:
    return {
        "id": session.session_id,
        "object": "conversation",
        "created_at": session.created_at.seconds,
        "metadata": notes_of(session.state_json.get(NOTES, "{}")),
    }


def _items_of(session: session_pb2.Session) -> list[Item]:
    return items_of_messages(session.messages, session.session_id, session.first_position)
