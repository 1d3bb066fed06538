"""Storage of approvals: tool calls that wait for a decision, and the decisions."""

from __future__ import annotations

from typing import Protocol

from services.orchestrator.core.model.keys import ExecutionKey
from services.orchestrator.core.tools.approval import Approval, Resolution
from services.orchestrator.ports.changes import Changes
from services.orchestrator.ports.page import Page


class ApprovalStore(Changes, Protocol):
    """Approvals by execution and call. They are forgotten with their execution, and when it runs again."""

    async def ask_approval(self, key: ExecutionKey, asked: Approval) -> Approval:
        """Store an approval and return it, or return the stored approval of the same call with its decision.

        A stored approval is replaced if the arguments of the call differ.
        """

    async def get_approval(self, key: ExecutionKey, tool_call_id: str) -> Approval:
        """Return an approval. Raises NotFound."""

    async def resolve_approval(self, key: ExecutionKey, tool_call_id: str, resolution: Resolution) -> Approval:
        """Store a decision unless a decision is stored, and return the approval with the valid decision.

        Raises NotFound, and PreconditionFailed if the execution has ended.
        """

    async def list_approvals(self, *, tenant: str, limit: int, after: str, request_id: str) -> Page[Approval]:
        """Return the pending approvals of a tenant's executions, oldest first.

        Limited to one execution unless `request_id` is empty. `after` is the token of the last page. Raises
        InvalidRequest for an invalid token.
        """
