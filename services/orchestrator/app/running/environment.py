"""Defines the services, the journal and the limits that all executions of an orchestrator share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pagantic_common.domain.clock import Clock
from services.orchestrator.app.running.turns import ConcurrentTurns, Turns
from services.orchestrator.app.services import Services
from services.orchestrator.app.storage import StorageQuota
from services.orchestrator.core.cost import Prices
from services.orchestrator.core.model.plan import PlanPolicy
from services.orchestrator.ports.journal import Journal


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of executions, and the prices of models."""

    max_running: int = 256
    max_running_of_tenant: int = 0
    max_running_of_subject: int = 0
    max_running_bytes: int = 16 * 1024 * 1024
    max_running_bytes_of_tenant: int = 0
    has_tenants: bool = False
    max_request_bytes: int = 1024 * 1024
    max_response_bytes: int = 3 * 1024 * 1024
    max_execution_s: float = 3600.0
    plan_bounds: PlanPolicy = field(default_factory=PlanPolicy)
    concurrent_turns: ConcurrentTurns = ConcurrentTurns.WAIT
    prices: Mapping[str, Prices] = field(default_factory=dict)
    max_stored_bytes_of_tenant: int | None = None
    max_session_bytes: int = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Environment:
    """The services, the journal and the limits that executions share."""

    services: Services
    journal: Journal
    clock: Clock
    limits: Limits
    turns: Turns
    storage: StorageQuota


def make_environment(services: Services, journal: Journal, clock: Clock, limits: Limits) -> Environment:
    """Return the environment of one orchestrator."""
    storage = StorageQuota(
        journal, max_tenant_bytes=limits.max_stored_bytes_of_tenant, max_session_bytes=limits.max_session_bytes
    )
    return Environment(services, journal, clock, limits, Turns(journal, limits.concurrent_turns), storage)
