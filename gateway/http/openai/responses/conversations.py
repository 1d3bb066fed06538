"""`/v1/conversations`: the conversations stored in the orchestrator, with their messages as items."""

from __future__ import annotations

import uuid
from typing import Literal, NotRequired

from starlette.requests import Request
from starlette.responses import JSONResponse

from gateway.http.bodies import AnswerShape, read_object
from gateway.http.openai.forms import IgnoredFields, naming_ignored, read_form
from gateway.http.openai.kept import notes_of
from gateway.http.openai.pages import Deleted, deleted, list_of, page_of, page_parameters
from gateway.http.openai.responses.forms import ConversationForm, ConversationUpdateForm, ItemsForm
from gateway.http.openai.responses.items import Item, items_of_messages
from gateway.http.openai.responses.requests import messages_of_items, names_of_calls
from gateway.http.openai.responses.stored import ItemList
from gateway.http.operations import OPENAI, Operation
from gateway.http.streams.running import Answer
from pagantic.orchestrator.v1 import session_pb2
from pagantic_common.client import AsyncClient
from pagantic_common.domain.errors import NotFound, Unsupported
from pagantic_common.domain.ids import is_id

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
    return JSONResponse(page_of(_items_of(await _find(client, request)), request.query_params))


async def _add(client: AsyncClient, request: Request, body: bytes) -> Answer:
    """Add items to a conversation."""
    form = read_form(read_object(body), ItemsForm)
    session = await _find(client, request)
    messages = messages_of_items(form.items, names_of_calls(session.messages), "items")
    changed = await client.update_session(session.session_id, {}, appended=messages)
    first = changed.message_count - len(messages)
    added = list_of(items_of_messages(messages, session.session_id, first))
    return JSONResponse(naming_ignored(added, form))


async def _item(client: AsyncClient, request: Request, _body: bytes) -> Answer:
    """Get an item of a conversation."""
    name = request.path_params["item_id"]
    for item in _items_of(await _find(client, request)):
        if item["id"] == name:
            return JSONResponse(item)
    raise NotFound(f"there is no item {name[:128]!r} in this conversation")


async def _remove(client: AsyncClient, request: Request, _body: bytes) -> Answer:
    """Reject the deletion, because items of a conversation cannot be deleted."""
    await _item(client, request, b"")
    raise Unsupported("items of a conversation cannot be deleted: delete the conversation, and make another one")


async def _find(client: AsyncClient, request: Request) -> session_pb2.Session:
    """Return a conversation with all its messages. Raises NotFound if it does not exist."""
    name = request.path_params["conversation_id"]
    unknown = NotFound(f"there is no conversation {name[:128]!r}")
    if not is_id(name):
        raise unknown
    try:
        return await client.get_session(name)
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
