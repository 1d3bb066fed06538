"""Opens the services that the orchestrator connects, and the budgets that limit their use."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial

import grpc

from pagantic_common.rpc.access.tls.certificates import read_certificates
from pagantic_common.rpc.access.tls.renewed_channel import open_service_channel
from pagantic_common.telemetry.clock import SystemClock
from services.orchestrator.adapters.access.key_files import tenant_credentials
from services.orchestrator.adapters.grpc_constraint import GrpcConstraint
from services.orchestrator.adapters.grpc_context import GrpcContext
from services.orchestrator.adapters.grpc_tools import GrpcTools
from services.orchestrator.adapters.journal.sql_journal import SqlJournal
from services.orchestrator.app.budgets import Budgets
from services.orchestrator.app.policy.charge import Charge
from services.orchestrator.app.policy.observe import observe
from services.orchestrator.app.policy.permit import Permit
from services.orchestrator.app.policy.search import SearchDocuments
from services.orchestrator.app.services import Around, Services
from services.orchestrator.app.waits import Waits
from services.orchestrator.core.conversation.memory import MemoryPolicy
from services.orchestrator.ports.budgets import BudgetStore
from services.orchestrator.ports.guards import Guards
from services.orchestrator.ports.services import InferencePort
from services.orchestrator.settings import OrchestratorSettings
from services.orchestrator.wiring.access import Access
from services.orchestrator.wiring.files import Files


@asynccontextmanager
async def open_budgets(store: BudgetStore) -> AsyncIterator[Budgets]:
    """Yield the budgets. Their grants are returned at the end, when executions can no longer use them."""
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
    journal: SqlJournal,
    budgets: Budgets,
    *,
    files: Files,
    access: Access,
    guards: Guards | None,
) -> Services:
    """Return the services, with the deployment's policies, budgets and measurements.

    The channels lead to constraint, context, rerank and tools.
    """
    constraint, context, rerank, tools = channels
    patience_s, credentials = settings.connect_patience_s, tenant_credentials(settings.signing_key_file)
    around: tuple[Around, ...] = (observe, Charge(budgets, settings.prices, inference.context_window))
    if access.policy is not None:
        around += (Permit(access.policy),)
    services = Services(
        inference=inference,
        constraint=GrpcConstraint(constraint, patience_s, credentials),
        tools=GrpcTools(tools, patience_s, credentials),
        context=GrpcContext(context, rerank, patience_s, credentials),
        prompts=files.prompts,
        summaries=journal,
        waits=Waits(journal, SystemClock(), settings.approval_wait_s),
        planner=settings.planner,
        memory=MemoryPolicy(settings.memory_max_messages, settings.memory_max_tokens, settings.memory_eviction),
        tool_policy=settings.tool_policy,
        max_offered_tool_bytes=settings.max_offered_tool_bytes,
        custom_steps=files.custom_steps,
        calibrations=files.calibrations,
        guards=guards,
        experiments=files.experiments_for(access.may_use),
        around=around,
    )
    if not settings.searched_collections:
        return services
    return replace(services, around=(*around, SearchDocuments(services, settings.searched_collections)))
