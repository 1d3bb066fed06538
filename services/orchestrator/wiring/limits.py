"""The limits of executions, from the settings."""

from __future__ import annotations

from collections.abc import Mapping

from services.orchestrator.app.running.environment import Limits
from services.orchestrator.core.model.plan import PlanPolicy
from services.orchestrator.ports.services import CustomStep
from services.orchestrator.settings import OrchestratorSettings


def limits_of(settings: OrchestratorSettings, custom_steps: Mapping[str, CustomStep]) -> Limits:
    """Return the limits."""
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
        max_request_bytes=settings.max_request_bytes,
        max_response_bytes=settings.max_response_bytes,
        max_execution_s=settings.max_execution_s,
        plan_bounds=bounds,
        concurrent_turns=settings.concurrent_turns,
        prices=settings.prices,
    )
