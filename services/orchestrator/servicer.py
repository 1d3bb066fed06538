"""Serves OrchestratorService: decodes each request, calls the app and encodes the response."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from types import MappingProxyType
from typing import Any

import grpc

from pagantic.inference.v1 import inference_service_pb2
from pagantic.orchestrator.v1 import event_pb2, execution_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic.orchestrator.v1 import orchestrator_service_pb2_grpc as rpc
from pagantic_common.codec.fields import decode_optional
from pagantic_common.codec.messages import (
    duration_from_proto,
    message_from_proto,
    model_info_to_proto,
    tool_definition_from_proto,
)
from pagantic_common.domain.calls.principal import DEFAULT_TENANT, Scope
from pagantic_common.domain.errors import ErrorCode, PermissionDenied
from pagantic_common.domain.ids import require_id
from pagantic_common.telemetry.scope import current_principal
from services.orchestrator.app.access.audit import Audit
from services.orchestrator.app.access.keys import Keys
from services.orchestrator.app.budgets import Budgets
from services.orchestrator.app.catalog import Templates, ToolCatalog
from services.orchestrator.app.executions import Executions
from services.orchestrator.app.history import History
from services.orchestrator.app.running.admission import Submission
from services.orchestrator.app.running.models import Models
from services.orchestrator.app.running.outside_guards import SessionChange
from services.orchestrator.convert.access import (
    audit_record_to_proto,
    budget_to_proto,
    key_to_proto,
    period_from_proto,
    scopes_from_proto,
)
from services.orchestrator.convert.event import event_to_proto
from services.orchestrator.convert.inference import (
    replica_change_to_proto,
    replica_to_proto,
    reranked_to_proto,
    token_count_to_proto,
    vectors_to_proto,
)
from services.orchestrator.convert.plan import plan_to_proto
from services.orchestrator.convert.record import (
    callable_tool_to_proto,
    kept_request_from_proto,
    record_to_proto,
    session_to_proto,
    template_to_proto,
    usage_keys_from_proto,
    usage_total_to_proto,
)
from services.orchestrator.convert.request import (
    fingerprint_of,
    mode_from_proto,
    request_from_proto,
    template_from_proto,
)
from services.orchestrator.convert.response import response_to_proto, state_from_proto, state_to_proto
from services.orchestrator.convert.steps import steps_to_proto
from services.orchestrator.convert.wait import approval_to_proto, decision_from_proto, wait_to_proto
from services.orchestrator.core.execution.wait import Wait, WaitKind
from services.orchestrator.core.model.keys import Account, ExecutionKey, SessionKey, account_of

Context = grpc.aio.ServicerContext[Any, Any]

_SHORT_NAME = "OrchestratorService"
MAX_NAMED_CHARS = 128
SERVICE_NAME = pb.DESCRIPTOR.services_by_name[_SHORT_NAME].full_name

# The scope that each method requires.
SCOPES: Mapping[str, Scope] = MappingProxyType(
    {
        "Execute": Scope.EXECUTE,
        "ExecuteStream": Scope.EXECUTE,
        "CancelExecution": Scope.EXECUTE,
        "ResumeExecution": Scope.EXECUTE,
        "CreatePlan": Scope.EXECUTE,
        "ResolveApproval": Scope.EXECUTE,
        "ListApprovals": Scope.READ,
        "SignalExecution": Scope.EXECUTE,
        "ListWaits": Scope.READ,
        "FollowExecution": Scope.READ,
        "GetExecution": Scope.READ,
        "ListExecutions": Scope.READ,
        "GetTimeline": Scope.READ,
        "ListSteps": Scope.READ,
        "GetSession": Scope.READ,
        "ListSessions": Scope.READ,
        "ListTools": Scope.EXECUTE,
        "ListModels": Scope.EXECUTE,
        "Embed": Scope.EXECUTE,
        "Rerank": Scope.EXECUTE,
        "CountTokens": Scope.EXECUTE,
        "ListPromptTemplates": Scope.READ,
        "RenderPromptTemplate": Scope.READ,
        "UpdateExecution": Scope.WRITE,
        "DeleteExecution": Scope.WRITE,
        "UpdateSession": Scope.WRITE,
        "DeleteSession": Scope.WRITE,
        "GetUsage": Scope.USAGE,
        "CreateKey": Scope.ADMIN,
        "ListKeys": Scope.ADMIN,
        "RevokeKey": Scope.ADMIN,
        "SetBudget": Scope.ADMIN,
        "GetBudget": Scope.USAGE,
        "ListBudgets": Scope.ADMIN,
        "ListAuditRecords": Scope.ADMIN,
        "ListReplicas": Scope.ADMIN,
        "LoadModel": Scope.ADMIN,
        "UnloadModel": Scope.ADMIN,
    }
)


class OrchestratorServicer(rpc.OrchestratorServiceServicer):
    """Implements the service that its proto file defines. The proto file documents each RPC."""

    def __init__(
        self,
        executions: Executions,
        history: History,
        keys: Keys,
        budgets: Budgets,
        audit: Audit,
        *,
        tools: ToolCatalog,
        models: Models,
        templates: Templates,
    ) -> None:
        self._executions = executions
        self._waits = executions.waits
        self._guards = executions.guards
        self._audit = audit
        self._keys = keys
        self._budgets = budgets
        self._history = history
        self._tools = tools
        self._models = models
        self._templates = templates

    def add_to(self, server: grpc.aio.Server) -> None:
        """Add this servicer to a server."""
        rpc.add_OrchestratorServiceServicer_to_server(self, server)

    def _decode(self, request: execution_pb2.SystemRequest) -> Submission:
        """Check the size of a request and decode it. A request without an ID gets a new ID."""
        size_bytes = request.ByteSize()
        self._executions.check_size(_execution(request.request_id), _account(), size_bytes)
        request_id = request.request_id or self._executions.new_request_id()
        require_id("request_id", request_id)
        if request.session_id:
            require_id("session_id", request.session_id)
        if request.HasField("replay") and Scope.READ not in current_principal().scopes:
            raise PermissionDenied("a replay needs the scope 'read', too", code=ErrorCode.AUTH_DENIED)
        decoded = request_from_proto(request, request_id, _account())
        fingerprint = fingerprint_of(request, current_principal().identity)
        kept = kept_request_from_proto(request, request_id)
        return Submission(decoded, fingerprint, size_bytes, has_new_id=not request.request_id, kept=kept)

    async def Execute(self, request: execution_pb2.SystemRequest, context: Context) -> execution_pb2.SystemResponse:
        submission = self._decode(request)
        noted = self._note("Execute", submission)
        response = await self._executions.execute(submission)
        await noted
        return response_to_proto(response)

    async def ExecuteStream(
        self, request: execution_pb2.SystemRequest, context: Context
    ) -> AsyncIterator[event_pb2.ExecutionEvent]:
        submission = self._decode(request)
        noted = self._note("ExecuteStream", submission)
        async with aclosing(self._executions.stream(submission)) as events:
            async for event in events:
                await noted
                yield event_to_proto(event)

    async def CancelExecution(self, request: pb.CancelExecutionRequest, context: Context) -> pb.CancelExecutionResponse:
        key = _execution(require_id("request_id", request.request_id))
        await self._record("CancelExecution", request_id=key.request_id)
        state = await self._executions.cancel(key)
        return pb.CancelExecutionResponse(state=state_to_proto(state))

    async def FollowExecution(
        self, request: pb.FollowExecutionRequest, context: Context
    ) -> AsyncIterator[event_pb2.ExecutionEvent]:
        key = _execution(require_id("request_id", request.request_id))
        async with aclosing(self._executions.follow(key, request.after_sequence)) as events:
            async for event in events:
                yield event_to_proto(event)

    async def GetExecution(self, request: pb.GetExecutionRequest, context: Context) -> pb.GetExecutionResponse:
        record = await self._history.execution(_execution(request.request_id))
        waits: Sequence[Wait] = ()
        if record.response is None:
            waits = (await self._waits.list_open(record.tenant, record.request_id)).items
        return pb.GetExecutionResponse(execution=record_to_proto(record, waits))

    async def UpdateExecution(self, request: pb.UpdateExecutionRequest, context: Context) -> pb.UpdateExecutionResponse:
        key = _execution(require_id("request_id", request.request_id))
        await self._record("UpdateExecution", request_id=key.request_id)
        record = await self._history.update_metadata(key, dict(request.metadata), request.removed_keys)
        return pb.UpdateExecutionResponse(execution=record_to_proto(record))

    async def DeleteExecution(self, request: pb.DeleteExecutionRequest, context: Context) -> pb.DeleteExecutionResponse:
        key = _execution(require_id("request_id", request.request_id))
        await self._record("DeleteExecution", request_id=key.request_id)
        await self._history.delete_execution(key)
        return pb.DeleteExecutionResponse()

    async def ListExecutions(self, request: pb.ListExecutionsRequest, context: Context) -> pb.ListExecutionsResponse:
        page = await self._history.executions(
            tenant=_tenant(),
            page_size=request.page_size,
            page_token=request.page_token,
            session_id=request.session_id,
            state=state_from_proto(request.state),
            metadata=dict(request.metadata),
            mode=mode_from_proto(request.mode),
        )
        encoded = [record_to_proto(record) for record in page.items]
        return pb.ListExecutionsResponse(executions=encoded, next_page_token=page.next_token)

    async def GetTimeline(self, request: pb.GetTimelineRequest, context: Context) -> pb.GetTimelineResponse:
        key = _execution(request.request_id)
        page = await self._history.timeline(key, request.after_sequence, request.max_events)
        encoded = [event_to_proto(event) for event in page.events]
        return pb.GetTimelineResponse(events=encoded, next_after_sequence=page.next_after)

    async def ListSteps(self, request: pb.ListStepsRequest, context: Context) -> pb.ListStepsResponse:
        record = await self._history.steps(_execution(request.request_id))
        return steps_to_proto(record, request.page_token, self._history.page_bytes)

    async def ResumeExecution(self, request: pb.ResumeExecutionRequest, context: Context) -> pb.ResumeExecutionResponse:
        key = _execution(require_id("request_id", request.request_id))
        await self._record("ResumeExecution", request_id=key.request_id)
        state = await self._executions.resume(key)
        return pb.ResumeExecutionResponse(state=state_to_proto(state))

    async def ResolveApproval(self, request: pb.ResolveApprovalRequest, context: Context) -> pb.ResolveApprovalResponse:
        key = _execution(request.request_id)
        decision = decision_from_proto(request.decision)
        await self._record("ResolveApproval", request_id=key.request_id)
        approval = await self._waits.decide(
            key,
            request.tool_call_id,
            decision,
            subject=current_principal().subject,
            arguments_json=request.arguments_json,
            reason=request.reason,
            check_changed=lambda arguments: self._guards.check_arguments(arguments, _account()),
            check_schema=self._tools.check_arguments,
        )
        await self._executions.wake(key)
        return pb.ResolveApprovalResponse(approval=approval_to_proto(approval))

    async def ListApprovals(self, request: pb.ListApprovalsRequest, context: Context) -> pb.ListApprovalsResponse:
        page = await self._waits.list_open(
            _tenant(), request.request_id, request.page_size, request.page_token, {WaitKind.APPROVAL}
        )
        encoded = [approval_to_proto(approval) for approval in page.items]
        return pb.ListApprovalsResponse(approvals=encoded, next_page_token=page.next_token)

    async def SignalExecution(self, request: pb.SignalExecutionRequest, context: Context) -> pb.SignalExecutionResponse:
        key = _execution(require_id("request_id", request.request_id))
        signal_id = request.signal_id or self._executions.new_request_id()
        await self._record("SignalExecution", request_id=key.request_id)
        await self._waits.signal(
            key,
            request.name,
            request.payload_json,
            lambda payload: self._guards.check_payload(payload, _account()),
            signal_id=signal_id,
            subject=current_principal().subject,
        )
        await self._executions.wake(key)
        return pb.SignalExecutionResponse(signal_id=signal_id)

    async def ListWaits(self, request: pb.ListWaitsRequest, context: Context) -> pb.ListWaitsResponse:
        page = await self._waits.list_open(_tenant(), request.request_id, request.page_size, request.page_token)
        return pb.ListWaitsResponse(waits=map(wait_to_proto, page.items), next_page_token=page.next_token)

    async def CreatePlan(self, request: pb.CreatePlanRequest, context: Context) -> pb.CreatePlanResponse:
        submission = self._decode(request.request)
        await self._note("CreatePlan", submission)
        plan = await self._executions.create_plan(submission.request, submission.size_bytes)
        return pb.CreatePlanResponse(plan=plan_to_proto(plan))

    async def GetSession(self, request: pb.GetSessionRequest, context: Context) -> pb.GetSessionResponse:
        key = _session(request.session_id)
        session = await self._history.session(key, request.max_messages, request.before_position)
        return pb.GetSessionResponse(session=session_to_proto(session))

    async def ListSessions(self, request: pb.ListSessionsRequest, context: Context) -> pb.ListSessionsResponse:
        page = await self._history.sessions(_tenant(), request.page_size, request.page_token, request.state_key)
        encoded = [session_to_proto(session) for session in page.items]
        return pb.ListSessionsResponse(sessions=encoded, next_page_token=page.next_token)

    async def UpdateSession(self, request: pb.UpdateSessionRequest, context: Context) -> pb.UpdateSessionResponse:
        key = _session(require_id("session_id", request.session_id))
        await self._record("UpdateSession", _session_named(key.session_id))
        appended = [message_from_proto(message) for message in request.appended_messages]
        replaced = {position: message_from_proto(message) for position, message in request.replaced_messages.items()}
        change = SessionChange(dict(request.state_json), appended, replaced)
        change = await self._guards.check_session(change, _account())
        session = await self._history.update_session(
            key, change.values, request.removed_keys, change.appended, change.replaced
        )
        return pb.UpdateSessionResponse(session=session_to_proto(session))

    async def GetUsage(self, request: pb.GetUsageRequest, context: Context) -> pb.GetUsageResponse:
        page = await self._history.usage(
            tenant=_tenant(),
            session_id=request.session_id,
            model=request.model,
            subject=request.subject,
            group_by=usage_keys_from_proto(request.group_by),
            page_size=request.page_size,
            page_token=request.page_token,
        )
        encoded = [usage_total_to_proto(total) for total in page.items]
        return pb.GetUsageResponse(totals=encoded, next_page_token=page.next_token)

    async def DeleteSession(self, request: pb.DeleteSessionRequest, context: Context) -> pb.DeleteSessionResponse:
        key = _session(require_id("session_id", request.session_id))
        await self._record("DeleteSession", _session_named(key.session_id))
        await self._history.delete_session(key)
        return pb.DeleteSessionResponse()

    async def ListTools(self, request: pb.ListToolsRequest, context: Context) -> pb.ListToolsResponse:
        encoded = [callable_tool_to_proto(tool) for tool in await self._tools.list()]
        return pb.ListToolsResponse(tools=encoded)

    async def ListModels(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:
        return pb.ListModelsResponse(models=map(model_info_to_proto, await self._models.list()))

    async def ListReplicas(self, request: pb.ListReplicasRequest, context: Context) -> pb.ListReplicasResponse:
        running, max_executions = self._models.running
        encoded = [replica_to_proto(replica) for replica in await self._models.list_replicas()]
        return pb.ListReplicasResponse(replicas=encoded, running_executions=running, max_executions=max_executions)

    async def LoadModel(self, request: pb.LoadModelRequest, context: Context) -> pb.LoadModelResponse:
        await self._record("LoadModel", _model_named(request.model))
        changes = await self._models.load(request.model)
        return pb.LoadModelResponse(results=map(replica_change_to_proto, changes))

    async def UnloadModel(self, request: pb.UnloadModelRequest, context: Context) -> pb.UnloadModelResponse:
        await self._record("UnloadModel", _model_named(request.model))
        changes = await self._models.unload(request.model)
        return pb.UnloadModelResponse(results=map(replica_change_to_proto, changes))

    async def Embed(
        self, request: inference_service_pb2.EmbedRequest, context: Context
    ) -> inference_service_pb2.EmbedResponse:
        vectors = await self._models.embed(request.texts, request.model, size_bytes=request.ByteSize())
        return vectors_to_proto(vectors)

    async def Rerank(self, request: pb.RerankRequest, context: Context) -> pb.RerankResponse:
        reranked = await self._models.rerank(
            request.query, request.texts, request.model, top_n=request.top_n, size_bytes=request.ByteSize()
        )
        return reranked_to_proto(reranked)

    async def CountTokens(
        self, request: inference_service_pb2.CountTokensRequest, context: Context
    ) -> inference_service_pb2.CountTokensResponse:
        messages = [message_from_proto(message) for message in request.chat.messages]
        tools = [tool_definition_from_proto(tool) for tool in request.chat.tools]
        counted = await self._models.count_tokens(
            messages, tools, request.texts, request.model, size_bytes=request.ByteSize()
        )
        return token_count_to_proto(counted)

    async def ListPromptTemplates(
        self, request: pb.ListPromptTemplatesRequest, context: Context
    ) -> pb.ListPromptTemplatesResponse:
        encoded = [template_to_proto(template) for template in self._templates.list()]
        return pb.ListPromptTemplatesResponse(templates=encoded)

    async def RenderPromptTemplate(
        self, request: pb.RenderPromptTemplateRequest, context: Context
    ) -> pb.RenderPromptTemplateResponse:
        call = template_from_proto(request.template)
        text = await self._templates.render(call, _session(request.session_id))
        return pb.RenderPromptTemplateResponse(text=text)

    async def CreateKey(self, request: pb.CreateKeyRequest, context: Context) -> pb.CreateKeyResponse:
        lifetime_s = decode_optional(request, "lifetime", partial(duration_from_proto, field="lifetime"))
        scopes = scopes_from_proto(list(request.scopes))
        await self._record("CreateKey", _tenant_named(request.tenant))
        key, text = await self._keys.create(request.tenant, request.subject, scopes, lifetime_s)
        return pb.CreateKeyResponse(key=key_to_proto(key), text=text)

    async def ListKeys(self, request: pb.ListKeysRequest, context: Context) -> pb.ListKeysResponse:
        await self._record("ListKeys", _tenant_named(request.tenant))
        page = await self._keys.list_keys(request.tenant, request.page_size, request.page_token)
        encoded = [key_to_proto(key) for key in page.items]
        return pb.ListKeysResponse(keys=encoded, next_page_token=page.next_token)

    async def RevokeKey(self, request: pb.RevokeKeyRequest, context: Context) -> pb.RevokeKeyResponse:
        await self._record("RevokeKey", f"key {require_id('key_id', request.key_id)}")
        return pb.RevokeKeyResponse(key=key_to_proto(await self._keys.revoke(request.key_id)))

    async def SetBudget(self, request: pb.SetBudgetRequest, context: Context) -> pb.SetBudgetResponse:
        account = Account(request.tenant or DEFAULT_TENANT, request.subject)
        await self._record("SetBudget", _account_named(account))
        budget = await self._budgets.set(
            account,
            period_from_proto(request.period),
            decode_optional(request, "max_tokens", int),
            decode_optional(request, "max_cost_usd", float),
        )
        return pb.SetBudgetResponse(budget=budget_to_proto(budget))

    async def GetBudget(self, request: pb.GetBudgetRequest, context: Context) -> pb.GetBudgetResponse:
        response = pb.GetBudgetResponse()
        for budget in await self._budgets.find(_account()):
            encoded = response.caller_budget if budget.account.subject else response.budget
            encoded.CopyFrom(budget_to_proto(budget))
        return response

    async def ListBudgets(self, request: pb.ListBudgetsRequest, context: Context) -> pb.ListBudgetsResponse:
        await self._record("ListBudgets")
        page = await self._budgets.list_budgets(request.page_size, request.page_token)
        encoded = [budget_to_proto(budget) for budget in page.items]
        return pb.ListBudgetsResponse(budgets=encoded, next_page_token=page.next_token)

    async def ListAuditRecords(
        self, request: pb.ListAuditRecordsRequest, context: Context
    ) -> pb.ListAuditRecordsResponse:
        await self._record("ListAuditRecords", _tenant_named(request.tenant))
        page = await self._audit.list_records(request.tenant, request.page_size, request.page_token)
        encoded = [audit_record_to_proto(record) for record in page.items]
        return pb.ListAuditRecordsResponse(records=encoded, next_page_token=page.next_token)

    def _note(self, method: str, submission: Submission) -> Awaitable[None]:
        """Queue the audit record of a request. The caller gets no response before the record is stored."""
        request = submission.request
        return self._audit.note(_named(method), _session_named(request.session_id), request.request_id)

    async def _record(self, method: str, resource: str = "", request_id: str = "") -> None:
        """Record a call that changes data, or reads data of all tenants, before the call takes effect."""
        await self._audit.record(_named(method), resource, request_id)


def _tenant() -> str:
    return current_principal().tenant


def _account() -> Account:
    return account_of(current_principal())


def _execution(request_id: str) -> ExecutionKey:
    return ExecutionKey(_tenant(), request_id)


def _session(session_id: str) -> SessionKey:
    return SessionKey(_tenant(), session_id)


def _named(method: str) -> str:
    return f"{_SHORT_NAME}/{method}"


def _session_named(session_id: str) -> str:
    return f"session {session_id}" if session_id else ""


def _account_named(account: Account) -> str:
    if account.subject:
        return f"{_tenant_named(account.tenant)}, subject {account.subject!r}"
    return _tenant_named(account.tenant)


def _model_named(model: str) -> str:
    return f"model {model[:MAX_NAMED_CHARS]!r}"


def _tenant_named(tenant: str) -> str:
    return f"tenant {tenant}" if tenant else ""
