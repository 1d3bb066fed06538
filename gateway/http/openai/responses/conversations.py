"""`/v1/conversations`: the conversations stored in the orchestrator, with their messages as items."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing, nullcontext
from typing import Literal, NotRequired

from starlette.requests import Request
from starlette.responses import JSONResponse

from gateway.http.bodies import AnswerShape, apart, hold_stored, read_object, reading_stored
from gateway.http.openai.forms import IgnoredFields, naming_ignored, read_form
from gateway.http.openai.kept import notes_of
from gateway.http.openai.pages import Deleted, deleted, list_of, page_parameters, page_within, read_page_query
from gateway.http.openai.responses.forms import ConversationForm, ConversationUpdateForm, ItemsForm
from gateway.http.openai.responses.items import Item, items_of_messages, without_item
from gateway.http.openai.responses.references import (
    find_calls,
    find_conversation,
    find_item,
    has_references,
    resolve_references,
    walk_items,
)
from gateway.http.openai.responses.requests import messages_of_items, names_of_calls
from gateway.http.openai.responses.stored import ItemList
from gateway.http.operations import OPENAI, Operation
from gateway.http.streams.running import Answer
from pagantic.orchestrator.v1 import session_pb2
from pagantic_common.client import AsyncClient

ID_PREFIX = "conv_"
NOTES = "openai.metadata"
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
        Operation(
            OPENAI,
            f"DELETE {_ONE}/items/{{item_id}}",
            _remove,
            "deleteConversationItem",
            answer=Conversation,
            reads_stored=True,
        ),
    ]


async def _create(client: AsyncClient, _request: Request, body: bytes) -> Answer:
    """Make a conversation."""
    form = await apart(body, read_form, read_object(body or b"{}"), ConversationForm)
    name = f"{ID_PREFIX}{uuid.uuid4().hex}"
    items = form.items or ()
    async with reading_stored(body) if has_references(items) else nullcontext():
        messages = messages_of_items(await resolve_references(client, items, "items"), {}, "items")
        hold_stored(body, sum(message.ByteSize() for message in messages))
    # The place is free again, because guards may ask a model about the messages.
    made = await client.update_session(name, {NOTES: form.metadata or {}}, appended=messages)
    return JSONResponse(naming_ignored(_object(made), form))


async def _retrieve(client: AsyncClient, request: Request, _body: bytes) -> Answer:
    """Get a conversation."""
    return JSONResponse(_object(await _find(client, request)))


async def _update(client: AsyncClient, request: Request, body: bytes) -> Answer:
    """Change the metadata of a conversation."""
    form = await apart(body, read_form, read_object(body), ConversationUpdateForm)
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
    page = read_page_query(request.query_params)
    session = await _find(client, request)
    start, end = 0, session.message_count
    if page.after:
        position = (await find_item(client, session.session_id, page.after))[0]
        start, end = (position, end) if page.is_ascending else (0, position + 1)
    items = walk_items(client, session.session_id, start, end, is_ascending=page.is_ascending)
    return JSONResponse(await page_within(_behind(items, page.after), page.size))


async def _behind(items: AsyncGenerator[tuple[Item, int], None], after: str) -> AsyncGenerator[tuple[Item, int], None]:
    """Yield the items after the item with the id `after`, or all items if `after` is empty."""
    is_behind = not after
    async with aclosing(items):
        async for item, item_bytes in items:
            if is_behind:
                yield item, item_bytes
            is_behind = is_behind or item["id"] == after


async def _add(client: AsyncClient, request: Request, body: bytes) -> Answer:
    """Add items to a conversation."""
    form = await apart(body, read_form, read_object(body), ItemsForm)
    conversation_id = request.path_params["conversation_id"]
    async with reading_stored(body):
        items = await resolve_references(client, form.items, "items")
        calls = await find_calls(client, conversation_id, items)
        messages = messages_of_items(items, names_of_calls(calls), "items")
        hold_stored(body, sum(message.ByteSize() for message in messages))
    # The place is free again, because guards may ask a model about the messages.
    changed = await client.update_session(conversation_id, {}, appended=messages)
    first = changed.message_count - len(messages)
    added = list_of(items_of_messages(messages, conversation_id, first))
    return JSONResponse(naming_ignored(added, form))


async def _item(client: AsyncClient, request: Request, _body: bytes) -> Answer:
    """Get an item of a conversation."""
    conversation_id, item_id = request.path_params["conversation_id"], request.path_params["item_id"]
    return JSONResponse((await find_item(client, conversation_id, item_id))[2])


async def _remove(client: AsyncClient, request: Request, _body: bytes) -> Answer:
    """Delete an item of a conversation."""
    conversation_id, item_id = request.path_params["conversation_id"], request.path_params["item_id"]
    position, message, _ = await find_item(client, conversation_id, item_id)
    rest = {position: without_item(message, item_id)}
    return JSONResponse(_object(await client.update_session(conversation_id, {}, replaced=rest)))


async def _find(client: AsyncClient, request: Request) -> session_pb2.Session:
    return await find_conversation(client, request.path_params["conversation_id"])


def _object(session: session_pb2.Session) -> Conversation:
    return {
        "id": session.session_id,
        "object": "conversation",
        "created_at": session.created_at.seconds,
        "metadata": notes_of(session.state_json.get(NOTES, "{}")),
    }
