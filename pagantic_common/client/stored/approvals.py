"""The client's methods for tool calls that wait for an approval."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagantic.orchestrator.v1 import approval_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.client.stored.administration import Administration
from pagantic_common.domain.text.json_text import dump_json


class Approvals(Administration):
    """Lists and decides tool calls that wait for an approval.

    A decision that cannot be made raises NotFound or PreconditionFailed.
    """

    async def list_approvals(self, *, request_id: str = "") -> list[approval_pb2.Approval]:
        """Return the waiting tool calls of one or all executions, the oldest first."""
        waiting: list[approval_pb2.Approval] = []
        token = ""
        while True:
            page = await self.list_approvals_page(pb.ListApprovalsRequest(request_id=request_id, page_token=token))
            waiting += page.approvals
            if not (token := page.next_page_token):
                return waiting

    async def list_approvals_page(self, request: pb.ListApprovalsRequest) -> pb.ListApprovalsResponse:
        """Return a page of the tool calls that wait for a decision."""
        return await self._call(self._stub().ListApprovals, request)

    async def approve(
        self, request_id: str, tool_call_id: str, *, arguments: Mapping[str, Any] | None = None, reason: str = ""
    ) -> approval_pb2.Approval:
        """Approve a tool call. If `arguments` are given, they replace the arguments of the call."""
        text = ""
        if arguments is not None:
            text = dump_json(dict(arguments))
        approved = approval_pb2.APPROVAL_DECISION_APPROVED
        return await self._resolve(request_id, tool_call_id, approved, arguments_json=text, reason=reason)

    async def reject(self, request_id: str, tool_call_id: str, *, reason: str = "") -> approval_pb2.Approval:
        """Reject a tool call. The model receives the reason."""
        return await self._resolve(request_id, tool_call_id, approval_pb2.APPROVAL_DECISION_REJECTED, reason=reason)

    async def _resolve(
        self,
        request_id: str,
        tool_call_id: str,
        decision: approval_pb2.ApprovalDecision.ValueType,
        *,
        arguments_json: str = "",
        reason: str = "",
    ) -> approval_pb2.Approval:
        request = pb.ResolveApprovalRequest(
            request_id=request_id,
            tool_call_id=tool_call_id,
            decision=decision,
            arguments_json=arguments_json,
            reason=reason,
        )
        return await self.resolve_approval(request)

    async def resolve_approval(self, request: pb.ResolveApprovalRequest) -> approval_pb2.Approval:
        """Decide a tool call, taking and returning protobuf messages."""
        return (await self._call(self._stub().ResolveApproval, request)).approval
