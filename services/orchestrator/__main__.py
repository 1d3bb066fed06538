"""Starts the orchestrator. No other module names the orchestrator's concrete classes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import grpc

from pagantic_common.rpc.access.registration import Registration
from pagantic_common.rpc.process.program import run_service
from pagantic_common.settings import Auth, load_settings
from pagantic_common.telemetry.clock import SystemClock
from pagantic_common.telemetry.metrics import add_gauge
from pagantic_common.telemetry.names import (
    ORCHESTRATOR_JOURNAL_BYTES,
    ORCHESTRATOR_JOURNAL_FREE_BYTES,
    ORCHESTRATOR_MAX_EXECUTIONS,
    ORCHESTRATOR_RUNNING_EXECUTIONS,
)
from services.orchestrator.adapters.guards.process_guards import open_guards
from services.orchestrator.adapters.journal.sql_journal import SqlJournal
from services.orchestrator.app.catalog import Templates, ToolCatalog
from services.orchestrator.app.executions import Executions
from services.orchestrator.app.history import PAGE_BYTES, History
from services.orchestrator.app.presence import Presence
from services.orchestrator.app.running.environment import Limits, make_environment
from services.orchestrator.app.running.models import Models
from services.orchestrator.core.model.plan import PlanPolicy
from services.orchestrator.ports.services import CustomStep
from services.orchestrator.servicer import SCOPES, SERVICE_NAME, OrchestratorServicer
from services.orchestrator.settings import OrchestratorSettings
from services.orchestrator.wiring.access import open_identity, read_access
from services.orchestrator.wiring.files import read_files
from services.orchestrator.wiring.inference import open_inference
from services.orchestrator.wiring.journal import open_journal
from services.orchestrator.wiring.services import channels_of, open_budgets, services_of

READY_TIMEOUT_S = 120.0  # Loading a large model takes a long time.


# Context, rerank and tools do not count, because most requests, such as plain chats, do not need them.
class Readiness:
    """Derives readiness from the state of the journal and of the connections, without making a call."""

    def __init__(self, needed: Mapping[str, grpc.aio.Channel], journal_trouble: Callable[[], str]) -> None:
        self._needed = needed
        self._journal_trouble = journal_trouble

    async def why_not(self) -> str:
        """Return the reason that the service is not ready, or an empty string if it is ready."""
        if trouble := self._journal_trouble():
            return trouble
        ready = grpc.ChannelConnectivity.READY  # The channels check health: ready means serving.
        missing = [
            name for name, channel in self._needed.items() if channel.get_state(try_to_connect=True) is not ready
        ]
        if not missing:
            return ""
        return f"no connection to {' and '.join(missing)}"


@asynccontextmanager
async def open_app(settings: OrchestratorSettings) -> AsyncIterator[Sequence[Registration]]:
    """Wire the service, and yield its registrations. The journal closes last.

    Raises InvalidRequest if a prompt template is invalid.
    """
    async with AsyncExitStack() as stack:
        files = read_files(settings)
        journal = await stack.enter_async_context(open_journal(settings))
        _report(journal)
        channels = [await stack.enter_async_context(opened) for opened in channels_of(settings)]
        budgets = await stack.enter_async_context(open_budgets(journal))
        inference = await stack.enter_async_context(open_inference(settings, channels[0]))
        access = read_access(settings, journal)
        guards = await stack.enter_async_context(open_guards(settings.guards_file))
        services = services_of(
            settings, inference.port, channels[1:], journal, budgets, files=files, access=access, guards=guards
        )
        environment = make_environment(services, journal, SystemClock(), limits_of(settings, files.custom_steps))
        executions = Executions(environment)
        stack.push_async_callback(executions.close)
        add_gauge(ORCHESTRATOR_RUNNING_EXECUTIONS, "executions that run", lambda: executions.registry.count)
        add_gauge(ORCHESTRATOR_MAX_EXECUTIONS, "most executions that may run", lambda: settings.max_running)
        keys, authenticator = await stack.enter_async_context(open_identity(settings, journal))
        history = History(journal, environment.storage, min(PAGE_BYTES, settings.max_message_bytes // 2))
        tools, templates = ToolCatalog(services), Templates(files.prompts, journal)
        presence = Presence(
            executions,
            journal,
            SystemClock(),
            settings.owner,
            resumes_plans=settings.resume_plans,
            wait_until_ready=partial(_wait_until_ready, channels),
        )
        presence.start()
        stack.push_async_callback(presence.stop)

        async def drain() -> None:
            await presence.stop()  # Presence must not resume released executions.
            await executions.close()

        trouble = partial(_journal_trouble, presence, journal, settings.journal_min_free_bytes)
        readiness = Readiness({"inference": channels[0], "constraint": channels[1]}, trouble)
        guard = access.guard(authenticator)
        yield [
            access.context(channels[2], guard, executions.registry),
            Registration(
                SERVICE_NAME,
                OrchestratorServicer(
                    executions,
                    history,
                    keys,
                    budgets,
                    access.audit,
                    tools=tools,
                    models=Models(environment, executions.registry, inference.serving),
                    templates=templates,
                ).add_to,
                SCOPES,
                guard,
                begin_drain=presence.begin_drain,
                drain=drain,
                why_not_ready=readiness.why_not,
                wait_until_broken=presence.wait_until_lost,
            ),
        ]


def _report(journal: SqlJournal) -> None:
    add_gauge(ORCHESTRATOR_JOURNAL_BYTES, "size of the journal's database", journal.space.used_bytes)
    if journal.space.free_bytes() is not None:
        add_gauge(
            ORCHESTRATOR_JOURNAL_FREE_BYTES,
            "room that the journal's volume has left",
            lambda: journal.space.free_bytes() or 0.0,
        )


def _journal_trouble(presence: Presence, journal: SqlJournal, min_free_bytes: int) -> str:
    """Return the reason that the journal is, or soon will be, unwritable, or an empty string."""
    if not presence.is_beating:
        return "no write of the journal has succeeded in the last seconds"
    if journal.write_failure:
        return f"the last write of the journal failed: {journal.write_failure}"
    try:
        free_bytes = journal.space.free_bytes()
    except OSError as error:
        return f"the journal's volume cannot be asked for its room: {error.strerror}"
    if free_bytes is not None and free_bytes < min_free_bytes:
        return f"the journal's volume has {free_bytes:.0f} bytes left, at least {min_free_bytes} are needed"
    return ""


async def _wait_until_ready(channels: Sequence[grpc.aio.Channel]) -> None:
    """Wait until every service reports that it serves. Raises TimeoutError after `READY_TIMEOUT_S`."""
    async with asyncio.timeout(READY_TIMEOUT_S):
        await asyncio.gather(*(channel.channel_ready() for channel in channels))


def main() -> None:
    """Run the orchestrator: the entry point of `python -m services.orchestrator`."""
    settings = load_settings(OrchestratorSettings)
    run_service("orchestrator", settings, partial(open_app, settings))


def limits_of(settings: OrchestratorSettings, custom_steps: Mapping[str, CustomStep]) -> Limits:
    """Return the configured limits on executions and plans."""
    bounds = PlanPolicy(
        max_steps=settings.max_plan_steps,
        allowed_kinds=settings.allowed_step_kinds or None,
        custom_kinds=frozenset(custom_steps),
        require_linear=settings.require_linear_plans,
        timeout_per_step_s=settings.max_step_s or None,
    )
    return Limits(
        max_running=settings.max_running,
        max_running_of_tenant=settings.max_running_of_tenant,
        max_running_of_subject=settings.max_running_of_subject,
        max_running_bytes=settings.max_running_bytes,
        max_running_bytes_of_tenant=settings.max_running_bytes_of_tenant,
        has_tenants=settings.auth is Auth.KEYS,
        max_request_bytes=settings.max_request_bytes,
        max_response_bytes=settings.max_response_bytes,
        max_execution_s=settings.max_execution_s,
        plan_bounds=bounds,
        concurrent_turns=settings.concurrent_turns,
        prices=settings.prices,
        max_stored_bytes_of_tenant=settings.max_tenant_bytes,
        max_session_bytes=settings.max_session_bytes,
    )


if __name__ == "__main__":
    main()
