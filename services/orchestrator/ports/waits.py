"""Storage of approvals for tool calls, and of the decisions about them."""

from __future__ import annotations

from typing import Protocol

from services.orchestrator.core.model.keys import ExecutionKey
from services.orchestrator.core.tools.approval import Approval, Resolution
from services.orchestrator.ports.changes import Changes
from services.orchestrator.ports.page import Page


class ApprovalStore(Changes, Protocol):
    """Stores approvals by execution and call.

    The approvals of an execution are deleted with the execution, and when it runs again.
    """

    async def ask_approval(self, key: ExecutionKey, asked: Approval) -> Approval:
        """Store an approval and return it, or return the stored approval of the same call with its decision.

        A stored approval is replaced if the arguments of the call differ.
        """

    async def get_approval(self, key: ExecutionKey, tool_call_id: str) -> Approval:
        """Return an approval. Raises NotFound if it does not exist."""

    async def resolve_approval(self, key: ExecutionKey, tool_call_id: str, resolution: Resolution) -> Approval:
        """Store a decision unless a decision is already stored, and return the approval with the valid decision.

        Raises NotFound if the approval does not exist, and PreconditionFailed if the execution has ended.
        """

    async def list_approvals(self, *, tenant: str, limit: int, after: str, request_id: str) -> Page[Approval]:
        """Return the pending approvals of a tenant's executions, oldest first.

        If `request_id` is not empty, only approvals of that execution are returned. `after` is the token from the
        previous page. Raises InvalidRequest if the token is invalid.
        """
