"""The services whose work is observed."""

from __future__ import annotations

from dataclasses import replace

from services.orchestrator.app.recording.observing.constraint import ObservedConstraint
from services.orchestrator.app.recording.observing.context import ObservedContext
from services.orchestrator.app.recording.observing.inference import ObservedInference
from services.orchestrator.app.recording.observing.tools import ObservedTools
from services.orchestrator.app.services import Services


def observed(services: Services) -> Services:
    """Return services whose work becomes spans and metrics, but for the tools."""
    return replace(
        services,
        inference=ObservedInference(services.inference),
        constraint=ObservedConstraint(services.constraint),
        context=ObservedContext(services.context),
    )


def with_observed_tools(services: Services) -> Services:
    """Return services whose tool calls become spans and metrics; tools that the orchestrator adds are among them."""
    return replace(services, tools=ObservedTools(services.tools))
