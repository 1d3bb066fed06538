"""An orchestrator that answers as told, served over a real socket from a thread."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from functools import partial

from pagantic.common.v1 import message_pb2
from pagantic.context.v1 import context_service_pb2
from pagantic.context.v1 import context_service_pb2_grpc as context_rpc
from pagantic.orchestrator.v1 import (
    approval_pb2,
    budget_pb2,
    event_pb2,
    execution_pb2,
    plan_pb2,
    session_pb2,
    usage_total_pb2,
)
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic.orchestrator.v1 import orchestrator_service_pb2_grpc as rpc
from pagantic_common.domain.errors import NotFound, PreconditionFailed
from pagantic_common.rpc.access.registration import Registration
from pagantic_common.rpc.process.server import start_server
from services.orchestrator.settings import OrchestratorSettings
from tests.support.doors import open_to_all


class ScriptedOrchestrator(rpc.OrchestratorServiceServicer):
    """Answers with `response`, keeps what it was asked, and hangs on the words `hang`.

    While there are `answers`, the next of them is the response's document.
    """

    def __init__(self):
        self.requests = []
        self.answers = []
        self.response = execution_pb2.SystemResponse(request_id="r1", content="hello")
        self.cancelled = threading.Event()
        self.events = []
        self.tools = []
        self.approval = approval_pb2.Approval(
            request_id="r1",
            tool_call_id="c1",
            tool_name="send",
            arguments_json='{"to": "a@b.example"}',
            reason="the policy asks",
            spans=[approval_pb2.TaintedSpan(argument="to", source="read (c0)", text="a@b.example")],
        )
        self.execution = execution_pb2.Execution(
            request_id="r1",
            mode=execution_pb2.MODE_CHAT,
            state=execution_pb2.ExecutionState(current=execution_pb2.LIFECYCLE_STATE_COMPLETE),
            response=self.response,
        )

    async def Execute(self, request, _context):
        self.requests.append(request)
        if request.messages[-1].content == "hang":
            await asyncio.sleep(60)
        if self.answers:
            self.response.structured_output_json = self.answers.pop(0)
        return self.response

    async def ExecuteStream(self, request, _context):
        self.requests.append(request)
        try:
            yield event_pb2.ExecutionEvent(sequence=1, content_delta=event_pb2.ContentDelta(text="hel"))
            if request.messages[-1].content == "hang":
                await asyncio.sleep(60)
        except (asyncio.CancelledError, GeneratorExit):  # the caller may leave while the text is sent
            self.cancelled.set()
            raise
        for event in self.events:
            yield event
        completed = event_pb2.Completed(response=self.response)
        yield event_pb2.ExecutionEvent(sequence=2, completed=completed)

    async def ListTools(self, _request, _context):
        return pb.ListToolsResponse(tools=self.tools)

    async def GetTimeline(self, request, _context):
        if request.request_id != "r1":
            raise NotFound(f"no execution has request_id {request.request_id!r}")
        first = event_pb2.ExecutionEvent(sequence=1, action="lifecycle.transition")
        return pb.GetTimelineResponse(events=[first, *self.events])

    async def GetExecution(self, request, _context):
        if request.request_id != "r1":
            raise NotFound(f"no execution has request_id {request.request_id!r}")
        return pb.GetExecutionResponse(execution=self.execution)

    async def ListExecutions(self, request, _context):
        self.requests.append(request)
        return pb.ListExecutionsResponse(executions=[self.execution])

    async def CreatePlan(self, request, _context):
        self.requests.append(request.request)
        return pb.CreatePlanResponse(plan=plan_pb2.ExecutionPlan(steps=[plan_pb2.Step(name="one", kind="infer")]))

    async def GetSession(self, request, _context):
        if request.session_id != "a":
            raise NotFound(f"no session has session_id {request.session_id!r}")
        said = message_pb2.Message(role=message_pb2.ROLE_USER, content="hi \x1b[2Jthere")
        return pb.GetSessionResponse(session=session_pb2.Session(session_id="a", messages=[said]))

    async def DeleteSession(self, request, _context):
        self.requests.append(request)
        return pb.DeleteSessionResponse()

    async def ListApprovals(self, request, _context):
        if request.page_token:
            return pb.ListApprovalsResponse()
        return pb.ListApprovalsResponse(approvals=[self.approval], next_page_token="1")  # noqa: S106

    async def ResolveApproval(self, request, _context):
        self.requests.append(request)
        if request.tool_call_id != "c1":
            raise NotFound(f"no call {request.tool_call_id!r} of execution {request.request_id!r} needs an approval")
        resolved = approval_pb2.Approval()
        resolved.CopyFrom(self.approval)
        resolved.resolution.decision = request.decision
        return pb.ResolveApprovalResponse(approval=resolved)

    async def CancelExecution(self, _request, _context):
        return pb.CancelExecutionResponse(state=execution_pb2.LIFECYCLE_STATE_CANCELLED)

    async def ResumeExecution(self, request, _context):
        if request.request_id != "r1":
            raise PreconditionFailed(f"execution {request.request_id!r} is not interrupted: it runs")
        return pb.ResumeExecutionResponse(state=execution_pb2.LIFECYCLE_STATE_EXECUTE)

    async def GetUsage(self, request, _context):
        total = usage_total_pb2.UsageTotal(
            session_id=request.session_id, model="default", requests=2, output_tokens=6, cost_usd=0.5
        )
        if request.group_by:
            total = usage_total_pb2.UsageTotal(requests=2, output_tokens=6, cost_usd=0.5)
            total.subject = ",".join(usage_total_pb2.UsageKey.Name(key) for key in request.group_by)
        return pb.GetUsageResponse(totals=[total])

    async def SetBudget(self, request, _context):
        return pb.SetBudgetResponse(budget=budget_pb2.Budget(tenant=request.tenant, max_tokens=request.max_tokens))

    async def ListSessions(self, request, _context):
        if not request.page_token:
            return pb.ListSessionsResponse(sessions=[session_pb2.Session(session_id="a")], next_page_token="1")  # noqa: S106
        return pb.ListSessionsResponse(sessions=[session_pb2.Session(session_id="b")])


class ScriptedCollections(context_rpc.ContextServiceServicer):
    """Lists these collections."""

    def __init__(self, *collections):
        self._collections = collections

    async def ListCollections(self, _request, _context):
        return context_service_pb2.ListCollectionsResponse(collections=self._collections)


@contextmanager
def serving(servicer, collections=None):
    """Serve in a thread, as the sync client needs; gives the address."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    registration = Registration(
        "pagantic.orchestrator.v1.OrchestratorService",
        lambda server: rpc.add_OrchestratorServiceServicer_to_server(servicer, server),
        open_to_all("pagantic.orchestrator.v1.OrchestratorService"),
    )
    registrations = [registration]
    if collections is not None:
        name = "pagantic.context.v1.ContextService"
        add = partial(context_rpc.add_ContextServiceServicer_to_server, collections)
        registrations.append(Registration(name, add, open_to_all(name)))
    start = start_server(OrchestratorSettings(port=0), registrations)
    server, _, port = asyncio.run_coroutine_threadsafe(start, loop).result(60)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(None), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
