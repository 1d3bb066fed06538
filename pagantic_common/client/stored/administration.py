"""The client's methods for operators: keys and budgets of tenants, audit records, and replicas that serve models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, TypeVar

import grpc

from pagantic.orchestrator.v1 import budget_pb2, key_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic.orchestrator.v1 import orchestrator_service_pb2_grpc as pb_grpc

ResponseT = TypeVar("ResponseT")
AUDIT_PAGE = 500
LOAD_S = 600.0  # Loading a large model takes minutes.


class OrchestratorCalls(ABC):
    """Declares the call and the stub that the client's methods use."""

    @abstractmethod
    async def _call(
        self,
        method: grpc.aio.UnaryUnaryMultiCallable[Any, ResponseT],
        request: Any,
        timeout_s: float | None = None,
    ) -> ResponseT:
        """Make a unary call."""

    @abstractmethod
    def _stub(self) -> pb_grpc.OrchestratorServiceAsyncStub:
        """Return the stub of the orchestrator."""


class Administration(OrchestratorCalls):
    """Methods that need a key with the scope ADMIN, except `budgets`."""

    async def create_key(
        self,
        subject: str,
        scopes: Sequence[key_pb2.KeyScope.ValueType],
        *,
        tenant: str = "",
        lifetime_s: float | None = None,
    ) -> tuple[key_pb2.Key, str]:
        """Create an API key, and return it with its text, which is available only now.

        The key is valid for `lifetime_s` seconds, or indefinitely if `lifetime_s` is None.
        """
        request = pb.CreateKeyRequest(subject=subject, scopes=scopes, tenant=tenant)
        if lifetime_s is not None:
            request.lifetime.FromMilliseconds(round(lifetime_s * 1000))
        created = await self._call(self._stub().CreateKey, request)
        return created.key, created.text

    async def list_keys(self, *, tenant: str = "") -> list[key_pb2.Key]:
        """Return the API keys of a tenant, or of all tenants, the oldest first."""
        keys: list[key_pb2.Key] = []
        token = ""
        while True:
            request = pb.ListKeysRequest(tenant=tenant, page_token=token)
            page = await self._call(self._stub().ListKeys, request)
            keys += page.keys
            if not (token := page.next_page_token):
                return keys

    async def revoke_key(self, key_id: str) -> key_pb2.Key:
        """Revoke an API key. Raises NotFound if it does not exist."""
        return (await self._call(self._stub().RevokeKey, pb.RevokeKeyRequest(key_id=key_id))).key

    async def set_budget(
        self,
        tenant: str,
        period: budget_pb2.BudgetPeriod.ValueType,
        *,
        max_tokens: int | None = None,
        max_cost_usd: float | None = None,
        subject: str = "",
    ) -> budget_pb2.Budget:
        """Set the budget of a tenant or of one of its callers, and return it. A budget without limits is deleted."""
        request = pb.SetBudgetRequest(
            tenant=tenant, period=period, max_tokens=max_tokens, max_cost_usd=max_cost_usd, subject=subject
        )
        return (await self._call(self._stub().SetBudget, request)).budget

    async def budgets(self) -> list[budget_pb2.Budget]:
        """Return the budgets that the caller's work is charged to: the caller's and the tenant's, if they exist.

        Raises NotFound if neither exists. Needs a key with the scope USAGE.
        """
        reply = await self._call(self._stub().GetBudget, pb.GetBudgetRequest())
        return [getattr(reply, name) for name in ("caller_budget", "budget") if reply.HasField(name)]

    async def list_budgets(self) -> list[budget_pb2.Budget]:
        """Return the budgets of all tenants and callers, sorted by tenant."""
        budgets: list[budget_pb2.Budget] = []
        token = ""
        while True:
            page = await self._call(self._stub().ListBudgets, pb.ListBudgetsRequest(page_token=token))
            budgets += page.budgets
            if not (token := page.next_page_token):
                return budgets

    async def list_audit_records(self, *, tenant: str = "", page_token: str = "") -> pb.ListAuditRecordsResponse:
        """Return a page of audit records for the callers of one tenant or of all tenants.

        The records are sorted by orchestrator and position.
        """
        request = pb.ListAuditRecordsRequest(tenant=tenant, page_size=AUDIT_PAGE, page_token=page_token)
        return await self._call(self._stub().ListAuditRecords, request)

    async def list_replicas(self) -> pb.ListReplicasResponse:
        """Return the replicas of the inference services, each with its load and its models.

        The response also contains the number of running executions.
        """
        return await self._call(self._stub().ListReplicas, pb.ListReplicasRequest())

    async def load_model(self, model: str) -> pb.LoadModelResponse:
        """Load a model in every replica that serves it. An empty alias selects the default model."""
        return await self._call(self._stub().LoadModel, pb.LoadModelRequest(model=model), LOAD_S)

    async def unload_model(self, model: str) -> pb.UnloadModelResponse:
        """Unload a model in every replica that serves it. Raises Aborted while requests use the model."""
        return await self._call(self._stub().UnloadModel, pb.UnloadModelRequest(model=model), LOAD_S)
