"""Runs a request for a tool call, reports its progress, and cancels it if the client cancels or disconnects."""

from __future__ import annotations

import uuid
from contextlib import aclosing
from typing import Any, Protocol

from mcp.server.context import ServerRequestContext

from gateway.mcp.mapping.progress import Report
from gateway.mcp.visits import visit_of
from gateway.web.callers import Callers, owner_of
from gateway.web.refusal import RETRY_AFTER_S
from pagantic.orchestrator.v1 import event_pb2, execution_pb2
from pagantic_common.codec.messages import duration_to_proto
from pagantic_common.domain.calls.shares import Shares
from pagantic_common.domain.errors import Cancelled, Overloaded, Unavailable
from pagantic_common.settings import Auth

Context = ServerRequestContext[Any, Any]


class Progress(Protocol):
    """Turns events of an execution into progress reports."""

    def report_of(self, event: event_pb2.ExecutionEvent) -> Report | None:
        """Return the report for an event, or None if the event needs no report."""


class Executions:
    """The executions of all clients.

    Args:
    callers: Provides the orchestrator client for each caller.
    max_calls: Maximum number of concurrent executions, shared among callers.
    call_s: Maximum duration of an execution.
    auth: The permitted callers.
    """

    def __init__(self, callers: Callers, *, max_calls: int, call_s: float, auth: Auth) -> None:
        self._callers = callers
        self._max_calls = max_calls
        self._call_s = call_s
        self._auth = auth
        self._places = Shares(max_calls)

    @staticmethod
    def new_request_id() -> str:
        """Return a new id for a request."""
        return uuid.uuid4().hex[:16]

    async def run(
        self, context: Context, request: execution_pb2.SystemRequest, progress: Progress
    ) -> execution_pb2.SystemResponse:
        """Run a request. Raises the error of a request that did not run, or Cancelled if the client disconnected."""
        owner = owner_of(context.request, self._auth)
        if not self._places.begin(owner):
            raise Overloaded(
                f"{self._max_calls - self._places.free} tool calls run, {self._places.held_by(owner)} of them for this "
                f"caller; at most {self._max_calls} may, and each caller has its share of them",
                retry_after_s=RETRY_AFTER_S,
            )
        self._limit_time(request)
        try:
            with visit_of(context.request).holding():
                return await self._follow(context, request, progress)
        finally:
            self._places.end(owner)
        raise Cancelled("the client left before the answer was complete")

    def _limit_time(self, request: execution_pb2.SystemRequest) -> None:
        asked_s = request.hints.timeout.ToMilliseconds() / 1000
        if not asked_s or asked_s > self._call_s:
            request.hints.timeout.CopyFrom(duration_to_proto(self._call_s))

    async def _follow(
        self, context: Context, request: execution_pb2.SystemRequest, progress: Progress
    ) -> execution_pb2.SystemResponse:
        client = self._callers.client_for(context.request)
        async with aclosing(client.follow_to_end(request)) as events:
            async for event in events:
                if event.HasField("completed"):
                    return event.completed.response
                report = progress.report_of(event)
                if report is not None:
                    await context.session.report_progress(report.progress, report.total, report.message)
        raise Unavailable(f"the stream of request {request.request_id!r} ended without a response")
