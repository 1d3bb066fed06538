"""Stored conversations over HTTP: list, read page by page, update and delete them."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse

from gateway.http.bodies import Done, apart, read_count, read_message, read_object
from gateway.http.native.executions import plain
from gateway.http.operations import NATIVE, Operation, Parameter
from gateway.http.streams.running import Answer
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic.orchestrator.v1 import session_pb2
from pagantic_common.client import AsyncClient
from pagantic_common.domain.errors import InvalidRequest

MAX_PAGE = 500
MAX_MESSAGES = 1000
MAX_POSITION = 2**31 - 1


def session_operations() -> list[Operation]:
    """Return the operations of sessions."""
    session = "/v1/sessions/{session_id}"
    position = {"type": "integer", "minimum": 0}
    return [
        Operation(
            NATIVE,
            "GET /v1/sessions",
            _list,
            "listSessions",
            answer=pb.ListSessionsResponse,
            parameters=(
                Parameter("page_size", {**position, "maximum": MAX_PAGE}, "Most sessions; 0 is 50."),
                Parameter("page_token", {"type": "string"}, "The `next_page_token` of the page before."),
                Parameter("state_key", {"type": "string"}, "Key of the value that each session is listed with."),
            ),
        ),
        Operation(
            NATIVE,
            f"GET {session}",
            _retrieve,
            "getSession",
            answer=session_pb2.Session,
            parameters=(
                Parameter("max_messages", {**position, "maximum": MAX_MESSAGES}, "Most messages; 0 is 1000."),
                Parameter(
                    "before_position", position, "Only messages before this position: `first_position` of a page."
                ),
            ),
        ),
        Operation(NATIVE, f"PATCH {session}", _update, "updateSession", pb.UpdateSessionRequest, session_pb2.Session),
        Operation(NATIVE, f"DELETE {session}", _delete, "deleteSession", answer=Done),
    ]


async def _list(client: AsyncClient, request: Request, _body: bytes) -> Answer:
    """List stored conversations without their messages, the most recently used first."""
    query = request.query_params
    page_request = pb.ListSessionsRequest(
        page_size=read_count("page_size", query.get("page_size", ""), otherwise=0, most=MAX_PAGE),
        page_token=query.get("page_token", ""),
        state_key=query.get("state_key", ""),
    )
    page = await client.list_sessions_page(page_request)
    return JSONResponse(
        {"sessions": [plain(session) for session in page.sessions], "next_page_token": page.next_page_token}
    )


async def _retrieve(client: AsyncClient, request: Request, _body: bytes) -> Answer:
    """Get a stored conversation with its newest messages."""
    query = request.query_params
    page_request = pb.GetSessionRequest(
        session_id=request.path_params["session_id"],
        max_messages=read_count("max_messages", query.get("max_messages", ""), otherwise=0, most=MAX_MESSAGES),
        before_position=read_count("before_position", query.get("before_position", ""), otherwise=0, most=MAX_POSITION),
    )
    return JSONResponse(plain(await client.get_session_page(page_request)))


async def _update(client: AsyncClient, request: Request, body: bytes) -> Answer:
    """Set and remove values of a conversation."""
    changes = await apart(body, read_message, read_object(body), pb.UpdateSessionRequest)
    session_id = request.path_params["session_id"]
    if changes.session_id not in ("", session_id):
        raise InvalidRequest("session_id of the body is not that of the path: leave it out of the body")
    if changes.appended_messages or changes.replaced_messages:
        raise InvalidRequest("messages cannot be changed here: POST /v1/executions takes turns of a conversation")
    changes.session_id = session_id
    return JSONResponse(plain(await client.change_session(changes)))


async def _delete(client: AsyncClient, request: Request, _body: bytes) -> Answer:
    """Delete a conversation and the parts of it that its executions keep."""
    await client.delete_session(request.path_params["session_id"])
    return JSONResponse({})
