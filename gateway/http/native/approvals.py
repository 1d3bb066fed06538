"""Approvals over HTTP: the tool calls that wait for a decision, and the decisions on them."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse

from gateway.http.bodies import apart, read_count, read_message, read_object
from gateway.http.native.executions import plain, take_path
from gateway.http.operations import NATIVE, Operation, Parameter
from gateway.http.streams.running import Answer
from pagantic.orchestrator.v1 import approval_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.client import AsyncClient
from pagantic_common.domain.errors import NotFound

MAX_PAGE = 500


def approval_operations() -> list[Operation]:
    """Return the operations of approvals. A path names a call by the ids of the execution and of the call."""
    approval = "/v1/approvals/{request_id}/{tool_call_id}"
    return [
        Operation(
            NATIVE,
            "GET /v1/approvals",
            _list,
            "listApprovals",
            answer=pb.ListApprovalsResponse,
            parameters=(
                Parameter("request_id", {"type": "string"}, "Only calls of this execution."),
                Parameter("page_size", {"type": "integer", "minimum": 0, "maximum": MAX_PAGE}, "Most calls; 0 is 50."),
                Parameter("page_token", {"type": "string"}, "The `next_page_token` of the page before."),
            ),
        ),
        Operation(NATIVE, f"GET {approval}", _retrieve, "getApproval", answer=approval_pb2.Approval),
        Operation(
            NATIVE,
            f"POST {approval}/decision",
            _decide,
            "resolveApproval",
            pb.ResolveApprovalRequest,
            approval_pb2.Approval,
        ),
    ]


async def _list(client: AsyncClient, request: Request, _body: bytes) -> Answer:
    """List the tool calls that wait for a decision, the oldest first."""
    query = request.query_params
    page_request = pb.ListApprovalsRequest(
        request_id=query.get("request_id", ""),
        page_size=read_count("page_size", query.get("page_size", ""), otherwise=0, most=MAX_PAGE),
        page_token=query.get("page_token", ""),
    )
    page = await client.list_approvals_page(page_request)
    return JSONResponse(
        {"approvals": [plain(approval) for approval in page.approvals], "next_page_token": page.next_page_token}
    )


async def _retrieve(client: AsyncClient, request: Request, _body: bytes) -> Answer:
    """Get a tool call that waits for a decision."""
    request_id, call_id = request.path_params["request_id"], request.path_params["tool_call_id"]
    for approval in await client.list_approvals(request_id=request_id):
        if approval.tool_call_id == call_id:
            return JSONResponse(plain(approval))
    raise NotFound(
        f"no call {call_id[:128]!r} of execution {request_id[:128]!r} waits: GET /v1/executions/ID/timeline has the "
        "decisions that were made"
    )


async def _decide(client: AsyncClient, request: Request, body: bytes) -> Answer:
    """Approve or reject a tool call."""
    decision = await apart(body, read_message, read_object(body), pb.ResolveApprovalRequest)
    take_path(decision, request)
    return JSONResponse(plain(await client.resolve_approval(decision)))
