"""Opens the services that the orchestrator connects, and the budgets that limit their use."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

import grpc

from pagantic_common.rpc.access.tls.certificates import read_certificates
from pagantic_common.rpc.access.tls.renewed_channel import open_service_channel
from pagantic_common.telemetry.clock import SystemClock
from services.orchestrator.adapters.access.key_files import tenant_credentials
from services.orchestrator.adapters.grpc_constraint import GrpcConstraint
from services.orchestrator.adapters.grpc_context import GrpcContext
from services.orchestrator.adapters.grpc_tools import GrpcTools
from services.orchestrator.app.approvals import Approvals
from services.orchestrator.app.budgeting.budgets import Budgets
from services.orchestrator.app.budgeting.services import within_budgets
from services.orchestrator.app.recording.observing.services import observed, with_observed_tools
from services.orchestrator.app.services import Services
from services.orchestrator.core.conversation.memory import MemoryPolicy
from services.orchestrator.ports.approvals import ApprovalStore
from services.orchestrator.ports.budgets import BudgetStore
from services.orchestrator.ports.services import InferencePort, SummaryStore
from services.orchestrator.settings import OrchestratorSettings
from services.orchestrator.wiring.files import Files

__all__ = ["channels_of", "open_budgets", "services_of", "with_observed_tools", "within_budgets"]


@asynccontextmanager
async def open_budgets(store: BudgetStore) -> AsyncIterator[Budgets]:
    """Yield the budgets. Their grants are returned at the end, when no execution can use them any more."""
    budgets = Budgets(store, SystemClock())
    budgets.start()
    try:
        yield budgets
    finally:
        await budgets.stop()


def channels_of(settings: OrchestratorSettings) -> list[AbstractAsyncContextManager[grpc.aio.Channel]]:
    """Return the channels to inference, constraint, context, rerank and tools, which the caller must open.

    Raises InvalidRequest if the certificates cannot be used.
    """
    others = (
        settings.constraint_address,
        settings.context_address,
        settings.rerank_address,
        settings.tools_address,
    )
    certificates = read_certificates(settings)
    open_one = partial(open_service_channel, settings=settings, certificates=certificates)
    return [open_one(settings.inference_address, waits=["Infer"]), *(open_one(address) for address in others)]


def services_of(
    settings: OrchestratorSettings,
    inference: InferencePort,
    channels: Sequence[grpc.aio.Channel],
    summaries: SummaryStore,
    approvals: ApprovalStore,
    *,
    files: Files,
) -> Services:
    """Return the services without budgets. All services except the tools service are observed.

    The channels lead to constraint, context, rerank and tools.
    """
    constraint, context, rerank, tools = channels
    patience_s, credentials = settings.connect_patience_s, tenant_credentials(settings.signing_key_file)
    services = Services(
        inference=inference,
        constraint=GrpcConstraint(constraint, patience_s, credentials),
        tools=GrpcTools(tools, patience_s, credentials),
        context=GrpcContext(context, rerank, patience_s, credentials),
        prompts=files.prompts,
        summaries=summaries,
        approvals=Approvals(approvals, SystemClock(), settings.approval_wait_s),
        planner=settings.planner,
        memory=MemoryPolicy(settings.memory_max_messages, settings.memory_max_tokens, settings.memory_eviction),
        tool_policy=settings.tool_policy,
        max_offered_tool_bytes=settings.max_offered_tool_bytes,
        custom_steps=files.custom_steps,
        calibrations=files.calibrations,
    )
    return observed(services)
