"""Serves stored responses by id from the orchestrator's records."""

from __future__ import annotations

from typing import NotRequired

from starlette.requests import Request
from starlette.responses import JSONResponse

from gateway.http.bodies import read_count
from gateway.http.openai.answers import text_of
from gateway.http.openai.forms import IgnoredFields
from gateway.http.openai.kept import echo_of, find
from gateway.http.openai.pages import Deleted, ListPage, deleted, page_of, page_parameters
from gateway.http.openai.responses.items import Item, input_items
from gateway.http.openai.responses.objects import ID_PREFIX, KIND, ResponseEcho, ResponseHead, ResponseObject
from gateway.http.openai.responses.stream import ResponseEvent, ResponseEvents
from gateway.http.operations import OPENAI, Operation, Parameter
from gateway.http.streams.running import Answer
from gateway.http.streams.sending import send_answer
from pagantic.common.v1 import message_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.client import AsyncClient
from pagantic_common.domain.errors import InvalidRequest, PreconditionFailed

MAX_SEQUENCE = (1 << 31) - 1
_ONE = "/v1/responses/{response_id}"


class ItemList(ListPage):
    """A page of items."""

    data: list[Item]
    pagantic: NotRequired[IgnoredFields]


def stored_operations() -> list[Operation]:
    """Return the operations of stored responses."""
    after = {"type": "integer", "minimum": 0, "maximum": MAX_SEQUENCE}
    following = (
        Parameter("stream", {"type": "boolean"}, "Whether to send its events."),
        Parameter("starting_after", after, "Only events after the one with this sequence number."),
    )
    return [
        Operation(
            OPENAI,
            f"GET {_ONE}",
            _retrieve,
            "getResponse",
            answer=ResponseObject,
            events=ResponseEvent,
            parameters=following,
        ),
        Operation(OPENAI, f"DELETE {_ONE}", _delete, "deleteResponse", answer=Deleted, reads_stored=True),
        Operation(OPENAI, f"POST {_ONE}/cancel", _cancel, "cancelResponse", answer=ResponseObject, reads_stored=True),
        Operation(
            OPENAI,
            f"GET {_ONE}/input_items",
            _list_input_items,
            "listInputItems",
            answer=ItemList,
            parameters=page_parameters("desc"),
        ),
    ]


async def _retrieve(client: AsyncClient, request: Request, _body: bytes) -> Answer:
    """Get or follow a stored response."""
    execution, query = await _find(client, request.path_params["response_id"]), request.query_params
    after = read_count("starting_after", query.get("starting_after", ""), otherwise=-1, most=MAX_SEQUENCE)
    if query.get("stream") == "true":
        events = ResponseEvents(_head_of(execution), after)
        return send_answer(client.follow(execution.request_id), events, execution.request_id, opens_at_once=True)
    return JSONResponse(_as_it_is(execution))


async def _delete(client: AsyncClient, request: Request, _body: bytes) -> Answer:
    """Delete a stored response."""
    execution = await _find(client, request.path_params["response_id"])
    await client.delete_execution(execution.request_id)
    return JSONResponse(deleted(ID_PREFIX + execution.request_id, KIND))


async def _cancel(client: AsyncClient, request: Request, _body: bytes) -> Answer:
    """Cancel a response."""
    execution = await _find(client, request.path_params["response_id"])
    await client.cancel(execution.request_id)
    return JSONResponse(_as_it_is(await client.get_execution(execution.request_id)))


async def _list_input_items(client: AsyncClient, request: Request, _body: bytes) -> Answer:
    """List the input of a stored response."""
    execution = await _find(client, request.path_params["response_id"])
    items = input_items(execution.request_id, execution.request.messages)
    return JSONResponse(page_of(items, request.query_params))


async def said_before(client: AsyncClient, response_id: str) -> list[message_pb2.Message]:
    """Return the messages up to the end of a response. Raises NotFound if the response is unknown."""
    execution = await _find(client, response_id)
    if execution.session_id:
        raise InvalidRequest(f"{response_id} belongs to conversation {execution.session_id!r}: send that instead")
    if not execution.HasField("response"):
        raise PreconditionFailed(f"{response_id} has not ended: wait for it, or cancel it")
    response = execution.response
    answer = message_pb2.Message(
        role=message_pb2.ROLE_ASSISTANT,
        content=text_of(response),
        reasoning=response.reasoning,
        tool_calls=response.tool_calls,
    )
    return [*execution.request.messages, answer]


async def _find(client: AsyncClient, response_id: str) -> execution_pb2.Execution:
    return await find(client, response_id, ID_PREFIX, KIND)


def _head_of(execution: execution_pb2.Execution) -> ResponseHead:
    return ResponseHead(execution.request, echo_of(execution, ResponseEcho).model_dump(exclude_unset=True))


def _as_it_is(execution: execution_pb2.Execution) -> ResponseObject:
    head = _head_of(execution)
    if not execution.HasField("response"):
        return head.running()
    return head.ended(execution.response)
