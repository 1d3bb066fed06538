"""Serves stored chat completions by id from the orchestrator's records. Each choice is a separate execution."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Annotated, Any, NotRequired

from pydantic import BaseModel, Field
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import JSONResponse

from gateway.http.bodies import MAX_PAGE_BYTES, AnswerShape, apart, read_object
from gateway.http.openai.answers import ChatCompletion, Heading, ToolCallObject, call_of, completion_of, is_unfinished
from gateway.http.openai.choices import choice_id
from gateway.http.openai.forms import MAX_CHOICES, MetadataForm, Notes, read_form
from gateway.http.openai.kept import KIND_KEY, echo_metadata, echo_of, find
from gateway.http.openai.pages import (
    Deleted,
    ListPage,
    deleted,
    objects_behind,
    page_of,
    page_parameters,
    page_within,
    read_page_query,
)
from gateway.http.operations import OPENAI, Operation, Parameter
from gateway.http.streams.running import RUN_AT_ONCE, Answer, run_all
from pagantic.common.v1 import message_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.client import AsyncClient
from pagantic_common.domain.errors import NotFound
from pagantic_common.domain.images import image_of
from pagantic_common.domain.text.json_text import dump_json

ID_PREFIX = "chatcmpl-"
KIND = "chat.completion"
# A list considers only this number of the newest chats.
MAX_LOOKED_AT = 1000
# A list reads more chats at once if the previous chats together have fewer bytes.
SMALL_BATCH_BYTES = MAX_PAGE_BYTES // 8
MAX_CREATED_S = 1 << 40
_ONE = "/v1/chat/completions/{completion_id}"
_ROLES = {
    message_pb2.ROLE_SYSTEM: "system",
    message_pb2.ROLE_USER: "user",
    message_pb2.ROLE_ASSISTANT: "assistant",
    message_pb2.ROLE_TOOL: "tool",
}


class ChatEcho(BaseModel):
    """The parts of a request that its stored chat repeats. Each choice is a separate execution."""

    model: str
    created: Annotated[int, Field(ge=0, le=MAX_CREATED_S)]
    metadata: Notes
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)]


class ChatList(ListPage):
    """A page of stored chats."""

    data: list[ChatCompletion]


class StoredMessage(AnswerShape):
    """A message of a stored chat."""

    id: str
    role: str
    content: str
    content_parts: list[dict[str, Any]] | None
    refusal: None
    tool_calls: NotRequired[list[ToolCallObject]]
    tool_call_id: NotRequired[str]


class StoredMessageList(ListPage):
    """A page of the messages of a stored chat."""

    data: list[StoredMessage]


def stored_chat_operations() -> list[Operation]:
    """Return the operations of stored chats."""
    filters = (
        Parameter("model", {"type": "string"}, "Only chats with this model, as the client named it."),
        Parameter(
            "metadata",
            {"type": "object", "additionalProperties": {"type": "string"}},
            "Only chats with this metadata.",
            style="deepObject",
        ),
    )
    return [
        Operation(
            OPENAI,
            "GET /v1/chat/completions",
            _list,
            "listChats",
            answer=ChatList,
            parameters=(*page_parameters("asc"), *filters),
        ),
        Operation(OPENAI, f"GET {_ONE}", _retrieve, "getChat", answer=ChatCompletion),
        Operation(OPENAI, f"POST {_ONE}", _update, "updateChat", MetadataForm, ChatCompletion, reads_stored=True),
        Operation(OPENAI, f"DELETE {_ONE}", _delete, "deleteChat", answer=Deleted, reads_stored=True),
        Operation(
            OPENAI,
            f"GET {_ONE}/messages",
            _messages,
            "listChatMessages",
            answer=StoredMessageList,
            parameters=page_parameters("asc"),
        ),
    ]


async def _list(client: AsyncClient, request: Request, _body: bytes) -> Answer:
    """List stored chats."""
    query = request.query_params
    page = read_page_query(query, order="asc")
    if page.after:
        page = replace(page, after=ID_PREFIX + page.after.removeprefix(ID_PREFIX))
    kept = await client.list_executions(metadata={KIND_KEY: KIND}, limit=MAX_LOOKED_AT)
    names = [{"id": ID_PREFIX + entry.request_id} for entry in reversed(kept) if _is_wanted(entry, query)]
    ids = [name["id"] for name in objects_behind(names, page)]
    return JSONResponse(await page_within(_walk_chats(client, ids), page.size))


async def _walk_chats(client: AsyncClient, ids: Sequence[str]) -> AsyncGenerator[tuple[ChatCompletion, int], None]:
    """Yield the existing chats with these ids, each with its size in bytes.

    The size of a chat is known only after the chat is read. The first chat is therefore read alone, and several chats
    are read at once only while the chats are small.
    """
    start, at_once = 0, 1
    while start < len(ids):
        batch = ids[start : start + at_once]
        start += at_once
        batch_bytes = 0
        for chat in await run_all([_found_or_gone(client, completion_id) for completion_id in batch]):
            if chat is not None:
                chat_bytes = len(dump_json(chat).encode(errors="replace"))
                batch_bytes += chat_bytes
                yield chat, chat_bytes
        at_once = min(2 * at_once, RUN_AT_ONCE) if batch_bytes < SMALL_BATCH_BYTES else 1


def _is_wanted(execution: execution_pb2.Execution, query: QueryParams) -> bool:
    if execution.state.current != execution_pb2.LIFECYCLE_STATE_COMPLETE:
        return False
    try:
        echo = echo_of(execution, ChatEcho)
    except NotFound:
        return False
    if query.get("model") not in (None, "", echo.model):
        return False
    metadata = {name[9:-1]: value for name, value in query.items() if name.startswith("metadata[") and name[-1] == "]"}
    return bool(metadata.items() <= echo.metadata.items())


async def _found_or_gone(client: AsyncClient, completion_id: str) -> ChatCompletion | None:
    try:
        return await _object(client, await _find(client, completion_id), at_once=1)
    except NotFound:
        return None


async def _retrieve(client: AsyncClient, request: Request, _body: bytes) -> Answer:
    """Get a stored chat."""
    return JSONResponse(await _object(client, await _find(client, request.path_params["completion_id"])))


async def _update(client: AsyncClient, request: Request, body: bytes) -> Answer:
    """Change the metadata of a stored chat."""
    form = await apart(body, read_form, read_object(body), MetadataForm)
    execution = await _find(client, request.path_params["completion_id"])
    echo = echo_of(execution, ChatEcho).model_dump() | {"metadata": form.metadata or {}}
    changed = await client.update_execution(execution.request_id, echo_metadata(echo))
    return JSONResponse(await _object(client, changed, form.ignored))


async def _delete(client: AsyncClient, request: Request, _body: bytes) -> Answer:
    """Delete a stored chat."""
    execution = await _find(client, request.path_params["completion_id"])
    for index in reversed(range(echo_of(execution, ChatEcho).n)):
        await client.delete_execution(choice_id(execution.request_id, index))
    return JSONResponse(deleted(ID_PREFIX + execution.request_id, "chat.completion.deleted"))


async def _messages(client: AsyncClient, request: Request, _body: bytes) -> Answer:
    """List the messages of a stored chat."""
    execution = await _find(client, request.path_params["completion_id"])
    owner, messages = execution.request_id, execution.request.messages
    stored = [_message(f"{ID_PREFIX}{owner}-{index}", message) for index, message in enumerate(messages)]
    return JSONResponse(page_of(stored, request.query_params, order="asc"))


async def _find(client: AsyncClient, completion_id: str) -> execution_pb2.Execution:
    """Return the execution of the first choice. Raises NotFound if it does not exist or has no answer."""
    execution = await find(client, completion_id, ID_PREFIX, KIND)
    response = execution.response
    if not execution.HasField("response") or (response.HasField("error") and not is_unfinished(response)):
        raise NotFound(f"the chat {completion_id[:128]!r} has no answer: it runs, was cancelled, or failed")
    return execution


async def _object(
    client: AsyncClient,
    execution: execution_pb2.Execution,
    ignored: Sequence[str] = (),
    *,
    at_once: int = RUN_AT_ONCE,
) -> ChatCompletion:
    """Return a chat, given the execution of its first choice. At most `at_once` other choices are read at a time."""
    echo = echo_of(execution, ChatEcho)
    others = (choice_id(execution.request_id, index) for index in range(1, echo.n))
    choices = await run_all([client.get_execution(execution_id) for execution_id in others], at_once=at_once)
    heading = Heading(ID_PREFIX + execution.request_id, echo.model, echo.created)
    responses = [execution.response, *(choice.response for choice in choices)]
    chat = completion_of(heading, responses, ignored)
    chat["metadata"] = echo.metadata
    return chat


def _part(part: message_pb2.ContentPart) -> dict[str, Any]:
    if part.HasField("image"):
        return {"type": "image_url", "image_url": {"url": image_of(part.image.media_type, part.image.data).url}}
    return {"type": "text", "text": part.text}


def _message(message_id: str, message: message_pb2.Message) -> StoredMessage:
    stored: StoredMessage = {
        "id": message_id,
        "role": message.said_as or _ROLES.get(message.role, "user"),
        "content": message.content,
        "content_parts": [_part(part) for part in message.parts] or None,
        "refusal": None,
    }
    if message.tool_calls:
        stored["tool_calls"] = [call_of(call) for call in message.tool_calls]
    if message.tool_call_id:
        stored["tool_call_id"] = message.tool_call_id
    return stored
