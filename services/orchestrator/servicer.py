"""OrchestratorService over the app: decode, call, encode."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc

from pagantic.orchestrator.v1 import event_pb2, execution_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic.orchestrator.v1 import orchestrator_service_pb2_grpc as rpc
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.ids import require_id
from pagantic_common.domain.json_text import JsonTextError, parse_json
from services.orchestrator.app.executions import Executions
from services.orchestrator.convert.event import event_to_proto, state_from_proto, state_to_proto
from services.orchestrator.convert.plan import plan_to_proto
from services.orchestrator.convert.record import record_to_proto, session_to_proto, usage_total_to_proto
from services.orchestrator.convert.request import fingerprint_of, request_from_proto
from services.orchestrator.convert.response import response_to_proto
from services.orchestrator.core.request import MAX_MODEL_CHARS, Request
from services.orchestrator.ports.journal import MAX_STATE_VALUES

Context = grpc.aio.ServicerContext[Any, Any]

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["OrchestratorService"].full_name
DEFAULT_PAGE = 50
MAX_PAGE = 500
MAX_AT_ONCE = 1000  # events or messages
PAGE_BYTES = 2 * 1024 * 1024  # half of what clients take; a larger event or message comes alone


class OrchestratorServicer(rpc.OrchestratorServiceServicer):
    """See the service's proto for what each rpc promises."""

    def __init__(self, executions: Executions, page_bytes: int = PAGE_BYTES) -> None:
        self._executions = executions
        self._page_bytes = page_bytes
        self._journal = executions.journal

    def add_to(self, server: grpc.aio.Server) -> None:
        """Add this servicer to a server."""
        rpc.add_OrchestratorServiceServicer_to_server(self, server)

    def _decode(self, request: execution_pb2.SystemRequest) -> tuple[Request, int]:
        """Return a request that is not too large, and its size in bytes."""
        size_bytes = request.ByteSize()
        self._executions.check_size(request.request_id, size_bytes, len(request.messages))
        return request_from_proto(request, request.request_id or self._executions.new_request_id()), size_bytes

    async def Execute(self, request: execution_pb2.SystemRequest, context: Context) -> execution_pb2.SystemResponse:
        decoded, size_bytes = self._decode(request)
        return response_to_proto(await self._executions.execute(decoded, fingerprint_of(request), size_bytes))

    async def ExecuteStream(
        self, request: execution_pb2.SystemRequest, context: Context
    ) -> AsyncIterator[event_pb2.ExecutionEvent]:
        decoded, size_bytes = self._decode(request)
        async with aclosing(self._executions.stream(decoded, fingerprint_of(request), size_bytes)) as events:
            async for event in events:
                yield event_to_proto(event)

    async def CancelExecution(self, request: pb.CancelExecutionRequest, context: Context) -> pb.CancelExecutionResponse:
        state = await self._executions.cancel(require_id("request_id", request.request_id))
        return pb.CancelExecutionResponse(state=state_to_proto(state))

    async def GetExecution(self, request: pb.GetExecutionRequest, context: Context) -> pb.GetExecutionResponse:
        record = await self._journal.get(require_id("request_id", request.request_id))
        return pb.GetExecutionResponse(execution=record_to_proto(record))

    async def ListExecutions(self, request: pb.ListExecutionsRequest, context: Context) -> pb.ListExecutionsResponse:
        page = await self._journal.list_executions(
            limit=_page_size(request.page_size),
            after=request.page_token,
            session_id=_optional_id("session_id", request.session_id),
            state=state_from_proto(request.state),
        )
        encoded = [record_to_proto(record) for record in page.items]
        return pb.ListExecutionsResponse(executions=encoded, next_page_token=page.next_token)

    async def GetTimeline(self, request: pb.GetTimelineRequest, context: Context) -> pb.GetTimelineResponse:
        request_id, limit = require_id("request_id", request.request_id), _count("max_events", request.max_events)
        events, has_more = await self._journal.timeline_page(
            request_id, _sequence("after_sequence", request.after_sequence), limit, self._page_bytes
        )
        return pb.GetTimelineResponse(
            events=[event_to_proto(event) for event in events],
            next_after_sequence=events[-1].sequence if has_more else 0,
        )

    async def ResumeExecution(self, request: pb.ResumeExecutionRequest, context: Context) -> pb.ResumeExecutionResponse:
        state = await self._executions.resume(require_id("request_id", request.request_id))
        return pb.ResumeExecutionResponse(state=state_to_proto(state))

    async def CreatePlan(self, request: pb.CreatePlanRequest, context: Context) -> pb.CreatePlanResponse:
        asked, size_bytes = self._decode(request.request)
        plan = await self._executions.create_plan(asked, size_bytes)
        return pb.CreatePlanResponse(plan=plan_to_proto(plan))

    async def GetSession(self, request: pb.GetSessionRequest, context: Context) -> pb.GetSessionResponse:
        session = await self._journal.get_session(
            require_id("session_id", request.session_id),
            _count("max_messages", request.max_messages),
            before=_sequence("before_position", request.before_position),
            max_bytes=self._page_bytes,
        )
        return pb.GetSessionResponse(session=session_to_proto(session))

    async def ListSessions(self, request: pb.ListSessionsRequest, context: Context) -> pb.ListSessionsResponse:
        page = await self._journal.list_sessions(limit=_page_size(request.page_size), after=request.page_token)
        encoded = [session_to_proto(session) for session in page.items]
        return pb.ListSessionsResponse(sessions=encoded, next_page_token=page.next_token)

    async def UpdateSession(self, request: pb.UpdateSessionRequest, context: Context) -> pb.UpdateSessionResponse:
        session_id = require_id("session_id", request.session_id)
        values = {require_id("state_json key", key): _document(key, text) for key, text in request.state_json.items()}
        removed = [require_id("removed_keys", key) for key in request.removed_keys]
        if len(values) + len(removed) > MAX_STATE_VALUES:
            raise InvalidRequest(f"more than {MAX_STATE_VALUES} values are changed at once")
        session = await self._journal.update_state(session_id, values, removed)
        return pb.UpdateSessionResponse(session=session_to_proto(session))

    async def GetUsage(self, request: pb.GetUsageRequest, context: Context) -> pb.GetUsageResponse:
        if len(request.model) > MAX_MODEL_CHARS or not request.model.isprintable():
            raise InvalidRequest(f"model must be at most {MAX_MODEL_CHARS} printable characters")
        session_id = _optional_id("session_id", request.session_id)
        page = await self._journal.usage_totals(
            session_id=session_id or None,
            model=request.model or None,
            limit=_page_size(request.page_size, MAX_PAGE),
            after=request.page_token,
        )
        encoded = [usage_total_to_proto(total) for total in page.items]
        return pb.GetUsageResponse(totals=encoded, next_page_token=page.next_token)

    async def DeleteSession(self, request: pb.DeleteSessionRequest, context: Context) -> pb.DeleteSessionResponse:
        await self._journal.delete_session(require_id("session_id", request.session_id))
        return pb.DeleteSessionResponse()


def _page_size(wanted: int, default: int = DEFAULT_PAGE) -> int:
    if not 0 <= wanted <= MAX_PAGE:
        raise InvalidRequest(f"page_size is {wanted}: it must be between 0 and {MAX_PAGE}")
    return wanted or default


def _count(field: str, wanted: int) -> int:
    return min(_sequence(field, wanted) or MAX_AT_ONCE, MAX_AT_ONCE)


def _sequence(field: str, value: int) -> int:
    if value < 0:
        raise InvalidRequest(f"{field} is {value}: it must not be negative")
    return value


def _optional_id(field: str, value: str) -> str:
    return require_id(field, value) if value else ""


def _document(key: str, text: str) -> str:
    try:
        parse_json(text)
    except JsonTextError as error:
        raise InvalidRequest(f"state_json[{key!r}] is not JSON: {error}") from None
    return text
