"""Wraps the services so that they apply the operator's policy."""

from __future__ import annotations

from dataclasses import replace

from services.orchestrator.app.access.permitting.constraint import PermittedConstraint
from services.orchestrator.app.access.permitting.context import PermittedContext
from services.orchestrator.app.access.permitting.inference import PermittedInference
from services.orchestrator.app.access.permitting.tools import PermittedTools
from services.orchestrator.app.services import Services
from services.orchestrator.ports.policy import Policy


def within_policy(services: Services, policy: Policy | None) -> Services:
    """Return services restricted by the policy, or the same services if there is no policy."""
    if policy is None:
        return services
    return replace(
        services,
        inference=PermittedInference(services.inference, policy),
        constraint=PermittedConstraint(services.constraint, policy),
        tools=PermittedTools(services.tools, policy),
        context=PermittedContext(services.context, policy),
    )
